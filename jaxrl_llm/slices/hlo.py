"""What the devices of a compiled program say to each other, from its text.

A loop's collectives count as often as it turns. The compiler for TPUs cuts an
exchange that runs beside products into steps, fused with those products, also
where they are turns of an inner loop: it counts as often as it starts.
"""

import collections
from collections.abc import Iterable, Iterator
import dataclasses
import math
import re

KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "collective-permute",
)
_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "bf16": 2}
# What the compiler for TPUs calls a reduce-scatter, writes on each step of an
# exchange, and has in the computation of its first step.
_SCATTER = "all-reduce-scatter"
_STEP = "chain_id="
_START = '"AsyncCollectiveStart"'
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.-]+) = (.*)$")
_COLLECTIVE = re.compile(
    rf"^(.*?) ({'|'.join(KINDS)})(-start)?\((.*)$"
)
_SHAPE = re.compile(r"\b(pred|bf16|[sufc]\d+[\w]*)\[([\d,]*)\]")
_BODY = re.compile(r"condition=%([\w.-]+), body=%([\w.-]+)")
_CALLED = re.compile(
    r"(?:calls|to_apply|true_computation|false_computation)=%([\w.-]+)"
)
_BRANCHES = re.compile(r"(?:branch|called)_computations=\{([^}]*)\}")
_BOUND = re.compile(r"compare\(%([\w.-]+), %([\w.-]+)\), direction=LT")
_CONSTANT = re.compile(r"constant\((\d+)\)")
_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_AXES = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^{]*\))? \{([^}]*)\}"
)
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_SOURCE = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Collective:
  """One exchange of a program.

  Attributes:
    kind: one of KINDS.
    shapes: (dtype, dimensions) of each array on one device: what is gathered,
      or what goes into the others.
    devices: that take part together.
    times: how often it happens in one call of the program.
    source: the operation that it stems from.
  """

  kind: str
  shapes: tuple[tuple[str, tuple[int, ...]], ...]
  devices: int
  times: int
  source: str

  @property
  def bytes(self) -> float:
    """Size of the arrays."""
    return sum(
        math.prod(dims) * _width(dtype) for dtype, dims in self.shapes
    )

  @property
  def sent(self) -> float:
    """Bytes that a device sends each time, around a ring of the devices."""
    if self.kind == "collective-permute":
      return self.bytes
    share = (self.devices - 1) / self.devices
    return self.bytes * share * (2 if self.kind == "all-reduce" else 1)


def collectives(text: str, turns: int) -> list[Collective]:
  """Lists what a compiled module exchanges.

  Args:
    text: of `Compiled.as_text()`.
    turns: of loops whose number the text does not fix.
  """
  bodies = dict(_computations(text))
  times = _times(bodies, turns)
  found = []
  for name, lines in bodies.items():
    scatters = name.startswith(_SCATTER)
    starts = any(_START in line for line in lines)
    for line in lines:
      if starts or _STEP not in line:
        found.append(_collective(line, scatters, times[name]))
  return [item for item in found if item and item.times and item.devices > 1]


def runs(text: str, turns: int) -> dict[str, tuple[int, str]]:
  """Returns, by name, how often each instruction runs in one call, and it.

  Args:
    text: of `Compiled.as_text()`.
    turns: of loops whose number the text does not fix.
  """
  bodies = dict(_computations(text))
  times = _times(bodies, turns)
  found = {}
  for name, lines in bodies.items():
    for made in filter(None, map(_INSTRUCTION.match, lines)):
      found[made[1]] = times[name], made[2]
  return found


def sent_by_kind(found: Iterable[Collective]) -> dict[str, float]:
  """Adds up the bytes that a device sends in one call, by kind."""
  sums = collections.Counter()
  for item in found:
    sums[item.kind] += item.sent * item.times
  return {kind: sums[kind] for kind in KINDS if sums[kind]}


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
  """Yields the name and the instructions of each; the entry's name is ''."""
  name, lines = None, []
  for line in text.splitlines():
    head = _COMPUTATION.match(line)
    if head:
      name, lines = "" if head[1] else head[2], []
    elif line.startswith("}") and name is not None:
      yield name, lines
      name = None
    elif name is not None:
      lines.append(line)


def _times(bodies: dict[str, list[str]], turns: int) -> collections.Counter:
  """Counts how often each computation runs in one call."""
  calls = {name: list(_calls(bodies, name, turns)) for name in bodies}
  waiting = collections.Counter(
      callee for made in calls.values() for callee, _ in made
  )
  times = collections.Counter({"": 1})
  ready = [name for name in bodies if not waiting[name]]
  while ready:  # A computation comes after all that call it.
    caller = ready.pop()
    for callee, count in calls[caller]:
      times[callee] += times[caller] * count
      waiting[callee] -= 1
      if not waiting[callee]:
        ready.append(callee)
  return times


def _calls(
    bodies: dict[str, list[str]], name: str, turns: int
) -> Iterator[tuple[str, int]]:
  """Yields (computation, how often) of the calls in a computation."""
  for line in bodies[name]:
    loop = _BODY.search(line)
    if loop:
      known = _KNOWN.search(line)
      yield loop[2], (
          int(known[1]) if known else _trips(bodies.get(loop[1], []), turns)
      )
    called = _CALLED.findall(line)
    for listed in _BRANCHES.findall(line):
      called += [item.strip().lstrip("%") for item in listed.split(",")]
    yield from ((callee, 1) for callee in called if callee in bodies)


def _trips(condition: list[str], turns: int) -> int:
  """Reads the turns of a loop from 0 in steps of 1, by its condition."""
  constants = {}
  for line in condition:
    made = _INSTRUCTION.match(line)
    value = _CONSTANT.search(line)
    if made and value:
      constants[made[1]] = int(value[1])
  for line in condition:
    bound = _BOUND.search(line)
    if bound and line.lstrip().startswith("ROOT"):
      return constants.get(bound[2], turns)
  return turns


def _collective(
    line: str, scatters: bool, times: int
) -> Collective | None:
  """Reads one instruction; None where it is no collective."""
  made = _INSTRUCTION.match(line)
  match = made and _COLLECTIVE.match(made[2])
  if not match:
    return None
  kind, started = match[2], match[3]
  shapes = _shapes(match[1])
  if started and kind == "collective-permute":
    shapes = shapes[:1]  # Input, output and two counters.
  elif started and kind == "all-gather":
    shapes = shapes[len(shapes) // 2 :]  # Inputs, then outputs.
  devices = _devices(line)
  if kind == "reduce-scatter":
    shapes = [(d, (devices, *dims)) for d, dims in shapes]
  if kind == "all-reduce" and scatters:
    kind = "reduce-scatter"
  source = _SOURCE.search(line)
  return Collective(
      kind, tuple(shapes), devices, times, source[1] if source else ""
  )


def _shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
  return [
      (dtype, tuple(int(x) for x in dims.split(",") if x))
      for dtype, dims in _SHAPE.findall(text)
  ]


def _devices(line: str) -> int:
  """Reads how many devices a collective joins."""
  if match := _AXES.search(line):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
    return math.prod(int(sizes[x]) for x in re.findall(r"'(\w+)'", match[2]))
  if match := _IOTA.search(line):
    return int(match[2])
  if match := _LISTED.search(line):
    return len(match[1].split(","))
  if "source_target_pairs" in line:
    return 2
  raise ValueError(
      "compiled text: expected replica groups as a list, an iota or axes of a"
      f" mesh, found {line.strip()[:300]}; teach hlo.py this form."
  )


def _width(dtype: str) -> float:
  """Returns the bytes of one number."""
  if dtype in _BYTES:
    return _BYTES[dtype]
  return int(re.match(r"[a-z]+(\d+)", dtype)[1]) / 8
