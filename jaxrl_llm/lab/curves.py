"""Curves and tables over the lag, with the noise between seeds."""

from collections.abc import Mapping, Sequence
import io
import pathlib
from typing import Any

import matplotlib
from matplotlib import figure as figure_lib

from jaxrl_llm.data import atomic
from jaxrl_llm.lab import staleness
from jaxrl_llm.lab import tables

ONE_SEED = (
    "no ranking: one seed does not say how far two runs of the same objective"
    " lie apart; give two or more in lab.seeds."
)


def text(found: Mapping[str, Any]) -> str:
  """Tables of a study: a line per objective, a column per lag.

  Args:
    found: what the verb writes as JSON: `lags`, `seeds`, `before` (reward of
      the start policy by seed), `version_lags` (updates behind each lag),
      `cells`, `summary`, `not_compared`.
  """
  lags, rows = found["lags"], found["summary"]
  labels = list(dict.fromkeys(row["label"] for row in rows))
  at = {(row["label"], row["lag"]): row for row in rows}
  seeds = len(found["seeds"])
  lines = [
      f"{len(labels)} objectives × {len(lags)} lags × {seeds} seeds;"
      " mean ± standard deviation over the seeds",
      "held-out reward of the start policy: "
      + ", ".join(f"{value:.4f}" for value in found["before"].values()),
      "lag in rounds (updates): "
      + ", ".join(
          f"{lag} ({updates})"
          for lag, updates in zip(lags, found["version_lags"], strict=True)
      ),
      "",
  ]
  for name, title, digits in staleness.SHOWN:
    lines.append(title)
    lines += tables.table(
        ["objective", *(f"lag {lag}" for lag in lags)],
        [
            [label, *(_cell(at[label, lag][name], digits) for lag in lags)]
            for label in labels
        ],
    )
    lines.append("")
  for lag in lags:
    lines += _ranking(found["cells"], lag)
  for label, reason in found["not_compared"].items():
    lines.append(f"not compared: {label}: {reason}")
  return "\n".join(lines).rstrip() + "\n"


def _cell(value: Mapping[str, float | None] | None, digits: int) -> str:
  if value is None:
    return tables.ABSENT
  shown = f"{value['mean']:.{digits}f}"
  if value["std"] is None:
    return shown
  return f"{shown} ± {value['std']:.{digits}f}"


def _ranking(cells: Sequence[Mapping[str, Any]], lag: int) -> list[str]:
  """The order at a lag, and which of it the seeds can tell."""
  if len({cell["seed"] for cell in cells}) < 2:
    return [f"lag {lag}: {ONE_SEED}"]
  ranked = staleness.ranking(cells, lag)
  if ranked is None:
    return [f"lag {lag}: no ranking of fewer than two objectives"]
  lines = [f"lag {lag}, by held-out reward; p of the gap to the first one:"]
  for place, one in enumerate(ranked):
    if place == 0:
      verdict = ""
    elif one.apart:
      verdict = f"  gap {one.gap:+.4f}, p {one.p:.3f}: told apart"
    else:
      verdict = f"  gap {one.gap:+.4f}, p {one.p:.3f}: within the noise"
    lines.append(f"  {one.label:<24}{one.mean:.4f}{verdict}")
  return [*lines, ""]


def draw(found: Mapping[str, Any], path: pathlib.Path) -> pathlib.Path:
  """Writes the curves as a PNG, a panel per number; returns the path.

  A line goes through the means over the seeds, its bars from the lowest to the
  highest seed.
  """
  lags, rows = found["lags"], found["summary"]
  labels = list(dict.fromkeys(row["label"] for row in rows))
  height = -(-len(staleness.SHOWN) // 2)
  figure = figure_lib.Figure(figsize=(13, 3 * height), layout="constrained")
  grid = figure.subplots(height, 2, sharex=True, squeeze=False)
  axes = grid.ravel()[: len(staleness.SHOWN)]
  colours = matplotlib.colormaps["tab10" if len(labels) <= 10 else "tab20"]
  for axis, (name, title, _) in zip(axes, staleness.SHOWN, strict=True):
    for number, label in enumerate(labels):
      shift = 0.4 * ((number + 0.5) / len(labels) - 0.5)
      points = _points(rows, label, name, lags, shift)
      if points:
        x, mean, low, high = map(list, zip(*points))
        axis.errorbar(
            x, mean, yerr=[low, high], label=label, marker="o", markersize=3,
            linewidth=1, capsize=2, color=colours(number),
        )
    axis.set_title(title, loc="left", fontsize=10)
    axis.grid(alpha=0.3)
  before = list(found["before"].values())
  start = sum(before) / len(before)
  axes[0].axhline(start, color="black", linestyle=":", label="start policy")
  axes[0].set_xticks(range(len(lags)), list(map(str, lags)))
  for spare in grid.ravel()[len(axes) :]:
    spare.set_axis_off()
  figure.legend(
      *axes[0].get_legend_handles_labels(), loc="outside upper center",
      ncols=5, frameon=False,
  )
  figure.supxlabel(
      f"lag in rounds; bars: lowest to highest of {len(found['seeds'])} seeds"
  )
  held = io.BytesIO()
  figure.savefig(held, dpi=120, format="png")
  atomic.write_bytes(path, held.getvalue())
  return path


def _points(
    rows: Sequence[Mapping[str, Any]],
    label: str,
    name: str,
    lags: Sequence[int],
    shift: float,
) -> list[tuple[float, float, float, float]]:
  """(x, mean, mean − lowest, highest − mean) of an objective's lags."""
  return [
      (
          lags.index(row["lag"]) + shift,
          row[name]["mean"],
          row[name]["mean"] - row[name]["low"],
          row[name]["high"] - row[name]["mean"],
      )
      for row in rows
      if row["label"] == label and row[name] is not None
  ]
