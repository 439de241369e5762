"""Charts of the ratios by position in the response.

Records of kind `positions` hold, per update, `edges` (n + 1 ints: bucket i is
[edges[i], edges[i + 1]) of the response position) and lists of length n, null
where a bucket has no token.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import colors as colors_lib
import numpy as np

from jaxrl_llm.lab import charts

Axes = axes_lib.Axes
Run = charts.Run
KIND = "positions"
# Share of the largest value below which another is as good as 0.
_NIL = 1e-3
# Cells up to which each shows its number.
_NUMBERED = 72
_TICKS = 8


@dataclasses.dataclass(frozen=True)
class Table:
  """One quantity of the records, on the buckets that all of them share.

  Attributes:
    steps: int [S], of the records.
    edges: int [n + 1], every edge of any record.
    values: float [n, S], NaN where there is no token.
  """

  steps: np.ndarray
  edges: np.ndarray
  values: np.ndarray

  @property
  def labels(self) -> list[str]:
    """Positions of each bucket, last one included."""
    pairs = zip(self.edges[:-1], self.edges[1:] - 1)
    return [f"{a}" if a == b else f"{a}–{b}" for a, b in pairs]


def table(records: Sequence[Mapping[str, Any]], name: str) -> Table:
  """Lays the buckets of records side by side; a bucket's value fills it.

  Buckets that no response reaches are left out.
  """
  held = [record for record in records if record.get(name) is not None]
  edges = np.unique(np.concatenate([record["edges"] for record in held]))
  values = np.full((len(edges) - 1, len(held)), np.nan)
  for column, record in enumerate(held):
    own = np.array(record[name], np.float64)  # null becomes NaN.
    bucket = np.searchsorted(record["edges"], edges[:-1], side="right") - 1
    inside = (bucket >= 0) & (bucket < len(own))
    values[inside, column] = own[bucket[inside]]
  steps = np.array([record["step"] for record in held])
  used = np.flatnonzero(~np.isnan(values).all(axis=1))
  stop = used[-1] + 1 if used.size else 1
  return Table(steps, edges[: stop + 1], values[:stop])


def missing(run: Run, names: Sequence[str]) -> str:
  """Says why none of some quantities can be drawn."""
  if "metrics" in run.missing:
    return run.missing["metrics"]
  records = run.of_kind(KIND)
  if not records:
    if not run.of_kind("update"):
      return charts.no_records(run, "update")
    return (
        "metrics.jsonl holds no record by position: the run was made by a"
        " version that does not write them, or its objective has no ratios."
    )
  for name in names:
    held = [r for r in records if r.get(name) is not None]
    if any(value is not None for record in held for value in record[name]):
      return ""
  return (
      f"No record by position has {' or '.join(names)}: it means nothing to the"
      " objective of this run."
  )


@dataclasses.dataclass(frozen=True)
class Heat(charts.Chart):
  """A quantity over position and update.

  Attributes:
    quantity: name in the records.
    signed: colours both ways from 0; negative cells are hatched too.
    whole: colours run from 0 to 1.
  """

  quantity: str
  signed: bool = False
  whole: bool = False

  height = 3.1
  shared = False

  def missing(self, run: Run) -> str:
    return missing(run, [self.quantity])

  def latest(self, run: Run) -> str:
    found = table(run.of_kind(KIND), self.quantity)
    last = found.values[:, -1]
    if np.isnan(last).all():
      return f"at update {found.steps[-1]}: no token"
    low, high = int(np.nanargmin(last)), int(np.nanargmax(last))
    return (
        f"at update {found.steps[-1]}: least {last[low]:.3g} at position"
        f" {found.labels[low]}, most {last[high]:.3g} at {found.labels[high]}"
    )

  def limits(self, runs: Sequence[Run]) -> tuple[float, float]:
    """Ends of the colours, the same for all runs side by side."""
    if self.whole:
      return 0.0, 1.0
    every = [table(run.of_kind(KIND), self.quantity).values for run in runs]
    low = min(float(np.nanmin(values)) for values in every)
    high = max(float(np.nanmax(values)) for values in every)
    if self.signed:
      reach = max(-low, high, 1e-6)
      return -reach, reach
    return min(low, 0.0), max(high, 1e-6)

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    found = table(run.of_kind(KIND), self.quantity)
    rows, columns = found.values.shape
    low, high = self.limits(runs)
    colors = matplotlib.colormaps["PuOr_r" if self.signed else "cividis_r"]
    corners = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    axes.set_facecolor("#eef0f2")
    mesh = axes.pcolormesh(
        *corners, found.values, cmap=colors, vmin=low, vmax=high
    )
    if self.signed:
      _hatch(axes, corners, found.values < -_NIL * high)
    axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=24)
    if rows * columns <= _NUMBERED:
      _number(axes, found.values, mesh)
    _tick(axes.xaxis, [str(step) for step in found.steps])
    _tick(axes.yaxis, found.labels)
    axes.set_xlabel("update")
    axes.set_ylabel("position in the response")
    axes.grid(False)


@dataclasses.dataclass(frozen=True)
class Profile(charts.Chart):
  """Quantiles of a log-ratio over the position, at the newest update.

  Attributes:
    quantity: its name before the slash.
    bounded: the objective's ratio under which the trust region's bounds are
      bounds on this quantity; drawn then.
  """

  quantity: str
  bounded: str

  height = 3.1

  def missing(self, run: Run) -> str:
    return missing(run, [f"{self.quantity}/q50"])

  def latest(self, run: Run) -> str:
    found = table(run.of_kind(KIND), f"{self.quantity}/q50")
    held = np.flatnonzero(~np.isnan(found.values[:, -1]))
    if not held.size:
      return f"at update {found.steps[-1]}: no token"
    first, last = held[0], held[-1]
    return (
        f"at update {found.steps[-1]}: median {found.values[first, -1]:+.3g}"
        f" at position {found.labels[first]}, {found.values[last, -1]:+.3g} at"
        f" {found.labels[last]}"
    )

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    name = f"{self.quantity}/q50"
    # A record that lacks it says nothing of it: the one before is drawn.
    held = [r for r in run.of_kind(KIND) if r.get(name) is not None]
    newest = held[-1:]
    found = table(newest, name)
    columns = {
        part: _column(newest, f"{self.quantity}/{part}", len(found.labels))
        for part in ("q05", "q25", "q50", "q75", "q95")
    }
    places = np.arange(len(found.labels))
    color, _, _ = charts.STYLES[0]
    for low, high, alpha, label in (
        ("q05", "q95", 0.16, "5 to 95 %"), ("q25", "q75", 0.3, "25 to 75 %")
    ):
      axes.fill_between(
          places, columns[low], columns[high], color=color, alpha=alpha,
          linewidth=0, label=label,
      )
    charts.plot(axes, places, columns["q50"], "median", charts.STYLES[0])
    axes.axhline(0, color=charts.INK, linewidth=0.7)
    if run.ratio == self.bounded:
      _bounds(axes, newest, places)
    _tick(axes.xaxis, found.labels)
    axes.set_xlabel(f"position in the response, update {found.steps[-1]}")
    axes.set_ylabel("nats")


def _bounds(
    axes: Axes, newest: Sequence[Mapping[str, Any]], places: np.ndarray
) -> None:
  """Draws the bounds beyond which a trust region cuts."""
  label = "bounds of the trust region"
  for name in ("bound_low", "bound_high"):
    if newest[0].get(name) is not None:
      values = _column(newest, name, len(places))
      charts.plot(axes, places, values, label, charts.STYLES[1])
      label = "_"  # One entry of the legend serves both.


def _column(
    newest: Sequence[Mapping[str, Any]], name: str, buckets: int
) -> np.ndarray:
  """Returns a quantity of one record in so many buckets, NaN beyond its own."""
  values = table(newest, name).values[:buckets, 0]
  return np.pad(values, (0, buckets - len(values)), constant_values=np.nan)


def _hatch(axes: Axes, corners, mask: np.ndarray) -> None:
  """Hatches the cells of a mask."""
  clear = colors_lib.ListedColormap(["none"])
  cells = np.ma.masked_where(~mask, np.ones(mask.shape))
  # Read when the artist is made.
  with matplotlib.rc_context({"hatch.color": "#00000055"}):
    axes.pcolor(*corners, cells, cmap=clear, edgecolors="none", hatch="//")


def _number(axes: Axes, values: np.ndarray, mesh) -> None:
  """Writes the values into their cells."""
  for (row, column), value in np.ndenumerate(values):
    if not np.isnan(value):
      red, green, blue, _ = mesh.cmap(mesh.norm(value))
      nil = 0 < abs(value) < _NIL * mesh.norm.vmax
      dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
      axes.text(
          column, row, "≈0" if nil else f"{value:.2g}", ha="center",
          va="center", fontsize=7, color="white" if dark else charts.INK,
      )


def _tick(axis, labels: Sequence[str]) -> None:
  """Names some of the places 0, 1, 2, … of an axis."""
  stride = -(-len(labels) // _TICKS)
  places = range(0, len(labels), stride)
  axis.set_ticks(list(places), [labels[place] for place in places])
