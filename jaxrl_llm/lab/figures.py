"""Charts as PNGs: one axes per run, side by side."""

from collections.abc import Sequence
import io
import itertools

import matplotlib
from matplotlib import figure as figure_lib

from jaxrl_llm.lab import charts

# Runs in one line.
COLUMNS = 3
_WIDTH_ALONE, _WIDTH_BESIDE = 5.4, 3.9  # Inches.
_DPI = 110
_STYLE = {
    "font.size": 9,
    "axes.edgecolor": "#8a939e",
    "axes.labelcolor": charts.INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.6,
    "hatch.color": "#ffffff",
    "hatch.linewidth": 0.8,
    "text.color": charts.INK,
    "xtick.color": "#52606d",
    "ytick.color": "#52606d",
}


def render(chart: charts.Chart, runs: Sequence[charts.Run]) -> bytes:
  """Returns the PNG of a chart; the same runs give the same bytes.

  Args:
    chart: what to draw.
    runs: none of which it misses.
  """
  columns = min(len(runs), COLUMNS)
  lines = -(-len(runs) // columns)
  width = _WIDTH_ALONE if columns == 1 else _WIDTH_BESIDE * columns
  with matplotlib.rc_context(_STYLE):
    figure = figure_lib.Figure(
        figsize=(width, chart.height * lines), layout="constrained"
    )
    grid = figure.subplots(
        lines, columns, sharey=chart.shared, squeeze=False
    )
    for axes, run in itertools.zip_longest(grid.flat, runs):
      if run is None:
        axes.set_axis_off()
        continue
      chart.draw(axes, run, runs)
      if len(runs) > 1:
        axes.set_title(run.name)
    _legend(figure, grid.flat)
    held = io.BytesIO()
    figure.savefig(held, dpi=_DPI, format="png", metadata={"Software": None})
  return held.getvalue()


def _legend(figure: figure_lib.Figure, grid) -> None:
  """Names what is drawn below all axes, each label once."""
  labels = {}
  for axes in grid:
    for handle, label in zip(*axes.get_legend_handles_labels()):
      labels.setdefault(label, handle)
  if len(labels) > 1:
    figure.legend(
        labels.values(), labels.keys(), loc="outside lower left",
        ncols=min(len(labels), 3), frameon=False, fontsize=8,
    )
