"""Tables of a replay as plain text."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

# Column: title, name of the number, factor, digits after the point.
COLUMNS = (
    ("loss", "loss", 1.0, 5),
    ("grad norm", "grad_norm", 1.0, 5),
    ("cut %", "clip", 100.0, 1),
    ("r>1 A>0", "clip/high_positive", 100.0, 1),
    ("r>1 A<0", "clip/high_negative", 100.0, 1),
    ("r<1 A>0", "clip/low_positive", 100.0, 1),
    ("r<1 A<0", "clip/low_negative", 100.0, 1),
    ("ESS %", "ess/ess", 100.0, 1),
    ("KL", "kl/behavior_k3", 1.0, 5),
    ("TV", "tv/behavior", 1.0, 5),
    ("ratio q01", "log_ratio/behavior/q01", 1.0, 2),
    ("ratio q99", "log_ratio/behavior/q99", 1.0, 2),
)
MOVES = (("updates", "updates", 1.0, 0), ("moved", "moved", 1.0, 5))
EXACT = (
    ("exact J", "exact/reward", 1.0, 5),
    ("cos exact", "exact/cosine", 1.0, 4),
)
LEGEND = (
    "cut %: tokens without a gradient, of all; then by the side of the ratio"
    " and the sign of the advantage, also of all. ESS, KL (k3) and TV are"
    " estimated on the tokens of the mini-batch, of the live policy against"
    " the behavior policy; ratio q01, q99: quantiles of log live/behavior,"
    " whose bins end at ±2."
)
ABSENT = "–"


def number(value: float | None, factor: float, digits: int) -> str:
  """Formats a number; what is not there or not finite is a dash."""
  if value is None or not math.isfinite(value):
    return ABSENT
  return f"{factor * value:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
  """Lines of a table; the first column is to the left, others to the right."""
  widths = [max(map(len, column)) for column in zip(header, *rows)]
  return [
      "  ".join(
          cell.ljust(width) if place == 0 else cell.rjust(width)
          for place, (cell, width) in enumerate(zip(row, widths))
      ).rstrip()
      for row in (header, *rows)
  ]


def of_rows(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """The table of one stage: an objective a line.

  Args:
    rows: numbers by label of the objective.
  """
  columns = list(COLUMNS)
  if any(row.get("updates") for row in rows.values()):
    columns += MOVES
  if any("exact/reward" in row for row in rows.values()):
    columns += EXACT
  return table(
      ["objective", *(column[0] for column in columns)],
      [
          [label, *(number(row.get(name), factor, digits)
                    for _, name, factor, digits in columns)]
          for label, row in rows.items()
      ],
  )


def of_cosines(
    labels: Sequence[str], cosines: Sequence[Sequence[float | None]]
) -> list[str]:
  """A matrix of cosines; columns are numbered as the lines are."""
  numbered = [f"{place + 1} {label}" for place, label in enumerate(labels)]
  return table(
      ["cosine", *(str(place + 1) for place in range(len(labels)))],
      [
          [label, *(number(value, 1.0, 3) for value in row)]
          for label, row in zip(numbered, cosines, strict=True)
      ],
  )


def of_replay(found: Mapping[str, Any]) -> str:
  """The whole report.

  Args:
    found: what the verb writes as JSON: `updates`; `objectives`, N labels;
      `rows` by objective and stage; `cosines` [N, N] by stage; and
      `not_replayed`, reasons by objective.
  """
  labels = found["objectives"]
  titles = {
      "start": "before the first update",
      "after": f"after {found['updates']} mini-batches, on the next one",
  }
  lines = []
  for stage, title in titles.items():
    rows = {label: found["rows"][label][stage] for label in labels}
    lines += [title, *of_rows(rows), ""]
    lines += ["gradients, " + title]
    lines += [*of_cosines(labels, found["cosines"][stage]), ""]
  lines += [f"moves of the parameters over {found['updates']} mini-batches"]
  lines += [*of_cosines(labels, found["cosines"]["moved"]), ""]
  lines += [LEGEND]
  for label, reason in found["not_replayed"].items():
    lines += [f"not replayed: {label}: {reason}"]
  return "\n".join(lines) + "\n"
