"""Draws a run: reward, ratio and clipping over its updates."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from jaxrl_llm.training import metrics

Record = Mapping[str, Any]
# Panel: title, scale, then (kind of record, name in it, label, line style).
PANELS = (
    (
        "Mean reward of the rollouts",
        "linear",
        (("batch", "reward", "rollout batch", "o-"),),
    ),
    (
        "Ratio of live to anchor policy",
        "log",
        (
            ("update", "ratio/mean", "mean", "-"),
            ("update", "ratio_max", "largest", ":"),
            ("update", "ratio_after_max", "largest after the region", "--"),
        ),
    ),
    (
        "Share of tokens cut by the trust region",
        "linear",
        (
            ("update", "clip", "all", "-"),
            ("update", "clip/high_positive", "ratio > 1, A > 0", "--"),
            ("update", "clip/low_negative", "ratio < 1, A < 0", ":"),
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
  for axis, (title, scale, lines) in zip(axes, PANELS, strict=True):
    for kind, name, label, style in lines:
      steps, values = series(records, kind, name)
      if steps:
        # A line through one point would show nothing.
        shown = style if len(steps) > 1 else "o"
        axis.plot(steps, values, shown, label=label, markersize=4)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_yscale(scale)
    axis.grid(alpha=0.3)
    if axis.lines:
      axis.legend(fontsize=8, frameon=False)
  axes[-1].set_xlabel("optimizer update")
  figure.savefig(path, dpi=120)
  pyplot.close(figure)
  return path


def series(
    records: Sequence[Record], kind: str, name: str
) -> tuple[list[int], list[float]]:
  """Returns steps and values of one number, where it is there and finite."""
  found = [
      (record["step"], record[name])
      for record in records
      if record["kind"] == kind and record.get(name) is not None
  ]
  return [step for step, _ in found], [value for _, value in found]
