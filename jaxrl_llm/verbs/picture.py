"""Draws a run: reward, ratio and clipping over its updates."""

from collections.abc import Mapping, Sequence
import math
import pathlib
from typing import Any

from jaxrl_llm.training import metrics

Record = Mapping[str, Any]
# Panel: title, then (name in metrics.jsonl, label, line style).
PANELS = (
    ("Reward of the rollouts", (("reward/mean", "mean reward", "o-"),)),
    (
        "Ratio of live to anchor policy",
        (
            ("ratio/mean", "mean", "-"),
            ("ratio_max", "largest", ":"),
            ("log_ratio/q01", "log-ratio, 1 % quantile", "--"),
            ("log_ratio/q99", "log-ratio, 99 % quantile", "--"),
        ),
    ),
    (
        "Share of tokens cut by the trust region",
        (
            ("clip", "all", "-"),
            ("clip/high_positive", "ratio > 1, advantage > 0", "--"),
            ("clip/low_negative", "ratio < 1, advantage < 0", ":"),
        ),
    ),
)


def draw(metrics_file: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
  """Writes a PNG of the numbers that a run recorded.

  Args:
    metrics_file: metrics.jsonl of the run.
    path: PNG to write.

  Returns:
    The path.
  """
  import matplotlib  # Slow to import, and read by no other verb.

  matplotlib.use("Agg")
  from matplotlib import pyplot

  records = metrics.read(metrics_file)
  figure, axes = pyplot.subplots(
      len(PANELS), 1, figsize=(8, 8), sharex=True, layout="constrained"
  )
  for axis, (title, lines) in zip(axes, PANELS, strict=True):
    for name, label, style in lines:
      steps, values = series(records, name)
      if steps:
        axis.plot(steps, values, style, label=label, markersize=4)
    axis.set_title(title, loc="left", fontsize=10)
    axis.grid(alpha=0.3)
    if axis.lines:
      axis.legend(fontsize=8, frameon=False)
  axes[-1].set_xlabel("optimizer update")
  figure.savefig(path, dpi=120)
  pyplot.close(figure)
  return path


def series(
    records: Sequence[Record], name: str
) -> tuple[list[int], list[float]]:
  """Returns the steps and finite values of one number, over all records."""
  found = [
      (record["step"], record[name])
      for record in records
      if name in record and record[name] is not None
  ]
  found = [(step, value) for step, value in found if math.isfinite(value)]
  return [step for step, _ in found], [value for _, value in found]
