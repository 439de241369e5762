"""Draws what growth.py measured."""

import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

# Panel: part, abscissa, its label, unit, then (ordinate, label) of each line.
PANELS = (
    ("batch", "rows", "rows", "seconds per token", (
        ("seconds_per_token", "training step"),
        ("attention_seconds_per_token", "attention alone"),
        ("update_seconds_per_token", "update alone"),
    )),
    ("length", "row_tokens", "tokens of a row", "seconds per token", (
        ("seconds_per_token", "training step"),
        ("attention_seconds_per_token", "attention alone"),
        ("other_seconds_per_token", "passes without attention"),
    )),
    ("batch", "tokens", "tokens of a micro-batch", "MiB", (
        ("temporary_mib", "temporary memory"),
    )),
    ("decode", "cached", "cached tokens per slot", "seconds per step", (
        ("seconds_per_step", "decoding step"),
    )),
)


def draw(records: list[dict[str, Any]], path: pathlib.Path) -> None:
  """Writes a PNG of the measurements."""
  figure, grid = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
  for axis, (part, across, label, unit, lines) in zip(
      grid.flat, PANELS, strict=True
  ):
    found = [record for record in records if record["part"] == part]
    if part == "decode" and found:
      found = found[1:]  # The first has another capacity.
      axis.set_title(f"capacity {found[0]['capacity']}", fontsize=10)
    for name, text in lines:
      if found:
        axis.plot(
            [record[across] for record in found],
            [record[name] for record in found],
            "o-", label=text, markersize=4,
        )
    axis.set_xscale("log", base=2)
    axis.set_xlabel(label)
    axis.set_ylabel(unit)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    if axis.lines:
      axis.legend(fontsize=8, frameon=False)
  figure.savefig(path, dpi=120)
  pyplot.close(figure)
