"""What a chart of the report is, and the charts of one number over updates.

A chart draws one run on one axes. `missing` says why there is nothing to draw,
`latest` puts the newest numbers into words: a picture that cannot be seen
still says something.
"""

import abc
from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

from matplotlib import axes as axes_lib

from jaxrl_llm.lab import workdir

Axes = axes_lib.Axes
Run = workdir.Run
# Okabe and Ito's colours, which the colour-blind tell apart, darkest first.
INK = "#1f2933"
BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE = (
    "#0072b2", "#d55e00", "#008f68", "#c98500", "#3a9bd1", "#a8487f",
)
# Colour, dash and marker: any one of the three is enough.
STYLES = (
    (BLUE, "-", "o"),
    (VERMILLION, "--", "s"),
    (GREEN, ":", "^"),
    (PURPLE, "-.", "D"),
)
# Fills with a hatch of their own.
FILLS = (
    (SKY, ""), (ORANGE, "///"), (GREEN, "..."), (PURPLE, "xx"),
    ("#9aa5b1", "\\\\\\"), (VERMILLION, "++"),
)
# Points of a line up to which each has a marker.
_MARKED = 40


@dataclasses.dataclass(frozen=True)
class Chart(abc.ABC):
  """One picture.

  Attributes:
    name: of its file, without the ending.
    title: what is drawn.
    caption: how to read it.
  """

  name: str
  title: str
  caption: str

  height = 2.7  # Inches.
  shared = True  # Whether runs side by side have one scale.

  @abc.abstractmethod
  def missing(self, run: Run) -> str:
    """Says why there is nothing to draw; empty where there is something."""

  @abc.abstractmethod
  def latest(self, run: Run) -> str:
    """Returns the newest numbers in words."""

  @abc.abstractmethod
  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    """Draws a run that is not missing; `runs` are all that are drawn."""


@dataclasses.dataclass(frozen=True)
class Lines(Chart):
  """Numbers of metrics.jsonl over the updates.

  Attributes:
    kind: of the records.
    lines: (name in the record, label) of each.
    unit: label of the vertical axis.
    scale: of it.
    whole: draws all of 0 to 1.
  """

  kind: str
  lines: Sequence[tuple[str, str]]
  unit: str
  scale: str = "linear"
  whole: bool = False

  def missing(self, run: Run) -> str:
    if "metrics" in run.missing:
      return run.missing["metrics"]
    records = run.of_kind(self.kind)
    if not records:
      return no_records(run, self.kind)
    if not any(series(records, name)[0] for name, _ in self.lines):
      names = ", ".join(name for name, _ in self.lines)
      return (
          f"No {self.kind} record of metrics.jsonl has a finite {names}: this"
          " run does not measure it."
      )
    return ""

  def latest(self, run: Run) -> str:
    words = []
    for name, label in self.lines:
      steps, values = series(run.of_kind(self.kind), name)
      if steps:
        words.append(f"{label}: {values[-1]:.3g}")
        last = steps[-1]
    return f"{'; '.join(words)} (update {last})"

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    mark_rounds(axes, run)
    for (name, label), style in zip(self.lines, STYLES):
      steps, values = series(run.of_kind(self.kind), name)
      if steps:
        plot(axes, steps, values, label, style)
    axes.set_yscale(self.scale)
    axes.set_xlabel("update")
    axes.set_ylabel(self.unit)
    if self.whole:
      axes.set_ylim(-0.03, 1.03)


@dataclasses.dataclass(frozen=True)
class Rewards(Chart):
  """Mean reward of each round, and of the mini-batches that it was cut into."""

  def missing(self, run: Run) -> str:
    if "metrics" in run.missing:
      return run.missing["metrics"]
    if not series(run.of_kind("batch"), "reward")[0]:
      return (
          "No batch record of metrics.jsonl has a reward: no round that was"
          " trained on has a verdict."
      )
    return ""

  def latest(self, run: Run) -> str:
    rounds = _round_rewards(run)
    number, (_, reward) = list(rounds.items())[-1]
    first = next(iter(rounds.values()))[1]
    return f"{first:.3g} in the first round, {reward:.3g} in round {number}"

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    mark_rounds(axes, run)
    steps, values = series(run.of_kind("update"), "reward")
    if steps:
      axes.plot(
          steps, values, "x", color="#7b8794", markersize=4,
          label="mini-batch that is trained on",
      )
    steps, values = zip(*_round_rewards(run).values())
    plot(axes, steps, values, "all rollouts of a round", STYLES[0])
    axes.set_xlabel("update")
    axes.set_ylabel("mean reward")


def no_records(run: Run, kind: str) -> str:
  """Says why metrics.jsonl holds no record of a kind."""
  if kind != "update":
    return f"metrics.jsonl holds no {kind} record: this run writes none."
  if run.feedback:
    return (
        f"metrics.jsonl holds no update record: the {len(run.feedback)} rounds"
        " behind it taught the policy nothing."
    )
  return (
      "metrics.jsonl holds no update record: training stopped before its first"
      " update, or is in the middle of it."
  )


def series(
    records: Sequence[Mapping[str, Any]], name: str
) -> tuple[list[int], list[float]]:
  """Returns steps and values of one number, where it is there and finite."""
  found = [
      (record["step"], record[name])
      for record in records
      if record.get(name) is not None and math.isfinite(record[name])
  ]
  return [step for step, _ in found], [value for _, value in found]


def plot(
    axes: Axes,
    steps: Sequence[float],
    values: Sequence[float],
    label: str,
    style: tuple[str, str, str],
) -> None:
  """Draws a line whose points are marked while they are few."""
  color, dash, marker = style
  axes.plot(
      steps,
      values,
      color=color,
      linestyle=dash,
      marker=marker if len(steps) <= _MARKED else "",
      markersize=4,
      linewidth=1.6,
      label=label,
  )


def mark_rounds(axes: Axes, run: Run) -> None:
  """Draws a fine line where each round begins, while they are few."""
  starts: dict[int, int] = {}
  for record in run.of_kind("batch"):
    starts.setdefault(record["round"], record["step"])
  if len(starts) <= _MARKED:
    for step in starts.values():
      axes.axvline(step - 0.5, color="#dde1e6", linewidth=0.8, zorder=0)


def _round_rewards(run: Run) -> dict[int, tuple[int, float]]:
  """Returns step and mean reward of each round."""
  found: dict[int, tuple[int, float]] = {}
  for record in run.of_kind("batch"):
    if record["reward"] is not None:
      found.setdefault(record["round"], (record["step"], record["reward"]))
  return found
