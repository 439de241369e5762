"""Says what programs need of a slice, in a table."""

from collections.abc import Iterable, Sequence

from jaxrl_llm.slices import chips
from jaxrl_llm.slices import compiling
from jaxrl_llm.slices import hlo

_GIB = 2**30
_NOTES = {
    "add": "loss and gradient of one micro-batch, added up",
    "update": "one optimizer step",
    "critic_values": "what the critic says of one micro-batch",
    "critic_add": "loss and gradient of the critic, of one micro-batch",
    "critic_update": "one step of the critic's optimizer",
    "weights": "the weights laid out for sampling, once per round",
    "prefill": "prompts read, one call",
    "fill": "responses begun: prompts copied into slots, first tokens drawn",
    "decode": "tokens drawn, one call",
}


def heading(topology: str, count: int) -> str:
  """Describes a slice by its published peaks."""
  chip = chips.chip(topology)
  return (
      f"{topology}: {count} chips; published peaks of each:"
      f" {chip.flops / 1e12:.0f} TFLOP/s in bfloat16,"
      f" {chip.memory / _GIB:.0f} GiB at {chip.bandwidth / 1e9:.0f} GB/s,"
      f" {chip.links / 1e9:.0f} GB/s to its neighbours"
  )


def parameters(count: int) -> str:
  """Says how many there are, in billions or, of small models, millions."""
  if count >= 1e8:
    return f"{count / 1e9:.2f} billion parameters"
  return f"{count / 1e6:.3g} million parameters"


def memory(
    found: Sequence[compiling.Needs], chip: chips.Chip
) -> list[str]:
  """Tables what lies in each chip's memory."""
  head = (
      "GiB per chip", "arguments", "temporaries", "results", "code", "beside",
      "total", "",
  )
  rows = []
  for needs in found:
    parts = (needs.arguments, needs.temporaries, needs.results, needs.code)
    gave_up = bool(needs.limit)
    rows.append((
        needs.name,
        *("–" if gave_up else _gib(part) for part in parts),
        _gib(needs.beside),
        _gib(needs.total),
        "fits" if needs.fits(chip) else "does not fit",
    ))
  return _table([head, *rows])


def work(found: Sequence[compiling.Needs], chip: chips.Chip) -> list[str]:
  """Tables what each chip computes and sends, and the least time for it."""
  head = (
      "per chip and call", "TFLOP", *(f"{kind}, GB" for kind in hlo.KINDS),
      "s compute", "s memory", "s links",
  )
  rows = []
  for needs in found:
    sent, times = needs.sent, needs.times(chip)
    unknown = bool(needs.limit)
    rows.append((
        needs.name,
        f"{needs.flops / 1e12:.3g}",
        *("–" if unknown else _number(sent.get(kind, 0) / 1e9)
          for kind in hlo.KINDS),
        f"{times[0]:.3g}",
        *("–" if unknown else f"{time:.3g}" for time in times[1:]),
    ))
  return _table([head, *rows])


def largest(
    found: Iterable[compiling.Needs], count: int
) -> list[str]:
  """Lists the exchanges of each program that send most, with their source."""
  lines = []
  for needs in found:
    most = sorted(
        needs.collectives, key=lambda item: item.sent * item.times
    )[: -count - 1 : -1]
    lines += [
        f"{needs.name}: {item.sent * item.times / 1e9:.3g} GB, {item.times} ×"
        f" {item.kind} over {item.devices} of"
        f" {' '.join(f'{d}{list(dims)}' for d, dims in item.shapes[:3])}"
        f"  {item.source[-60:]}"
        for item in most
    ]
  return lines


def legend(found: Iterable[compiling.Needs]) -> list[str]:
  """Says what the programs are."""
  return [f"{needs.name}: {_NOTES[needs.name]}" for needs in found]


def least_seconds(
    needs: compiling.Needs, chip: chips.Chip
) -> tuple[float, float]:
  """Seconds of a call: all at once, and one after another."""
  times = needs.times(chip)
  return max(times), sum(times)


def _gib(size: float) -> str:
  return f"{size / _GIB:.2f}"


def _number(value: float) -> str:
  return f"{value:.3g}" if value else "0"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
  """Aligns columns: the first to the left, the others to the right."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
      "  ".join(
          cell.ljust(width) if n == 0 else cell.rjust(width)
          for n, (cell, width) in enumerate(zip(row, widths, strict=True))
      ).rstrip()
      for row in rows
  ]
