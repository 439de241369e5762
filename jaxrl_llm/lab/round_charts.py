"""Charts of whole rounds: rewards of groups, responses, what was trained on."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.lab import charts
from jaxrl_llm.lab import rollouts

Axes = charts.Axes
Run = charts.Run
# Prompts of a plan up to which their counts are numbers beside the bars.
_NAMED_BARS = 12


@dataclasses.dataclass(frozen=True)
class Shares(charts.Chart):
  """Shares of a whole by round, as stacked bars."""

  height = 2.7

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    counts = self.counts(run)
    rounds = list(counts)
    names = self.names(run)
    base = np.zeros(len(rounds))
    totals = np.array([sum(counts[n].values()) for n in rounds])
    for name, (color, hatch) in zip(names, charts.FILLS):
      part = np.array([counts[n].get(name, 0) for n in rounds])
      share = part / np.maximum(totals, 1)
      axes.bar(
          rounds, share, 0.8, base, color=color, hatch=hatch, label=name,
          edgecolor="white", linewidth=0.4,
      )
      base += share
    axes.set_ylim(0, 1)
    axes.set_xlabel("round")
    axes.set_ylabel(self.unit)
    axes.xaxis.get_major_locator().set_params(integer=True)

  def latest(self, run: Run) -> str:
    counts = self.counts(run)
    number = list(counts)[-1]
    total = max(sum(counts[number].values()), 1)
    words = [
        f"{name} {counts[number].get(name, 0) / total:.0%}"
        for name in self.names(run)
    ]
    return f"in round {number}: {', '.join(words)}"

  def names(self, run: Run) -> list[str]:
    """Returns the parts of the whole, from below."""
    known = self.counts(run).values()
    return list(dict.fromkeys(name for entry in known for name in entry))

  def counts(self, run: Run) -> Mapping[int, Mapping[str, int]]:
    """Returns what is counted, by round and part."""
    raise NotImplementedError


class Groups(Shares):
  """Groups by what their responses show: those with both rewards teach."""

  unit = "share of groups"

  def missing(self, run: Run) -> str:
    if not self.counts(run):
      return run.missing.get("feedback") or "No round in feedback/ has a group."
    return ""

  def names(self, run: Run) -> list[str]:
    return ["all right", "some right", "none right"]

  def counts(self, run: Run) -> Mapping[int, Mapping[str, int]]:
    found = {}
    for number, groups in run.feedback.items():
      if groups:
        found[number] = collections.Counter(map(_verdict, groups))
    return found


class Reasons(Shares):
  """Responses by why they ended."""

  unit = "share of responses"

  def missing(self, run: Run) -> str:
    return run.missing.get("rollouts", "")

  def names(self, run: Run) -> list[str]:
    seen = {name for found in run.rollouts.values() for name in found.reasons}
    return [name for name in types.FINISH_REASONS if name in seen]

  def counts(self, run: Run) -> Mapping[int, Mapping[str, int]]:
    return {number: found.reasons for number, found in run.rollouts.items()}


class Used(Shares):
  """Records by what became of them before the first update on them."""

  unit = "share of records"

  def missing(self, run: Run) -> str:
    if "metrics" in run.missing:
      return run.missing["metrics"]
    return "" if self.counts(run) else charts.no_records(run, "batch")

  def names(self, run: Run) -> list[str]:
    names = super().names(run)
    return sorted(names, key=lambda name: name != "trained on")

  def counts(self, run: Run) -> Mapping[int, Mapping[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for record in run.of_kind("batch"):
      entry = found.setdefault(record["round"], {"trained on": 0})
      entry["trained on"] += record.get("records", 0)
      # Of the round as a whole, and in each of its batches the same.
      for name, count in record.items():
        if name.startswith("dropped/") and count:
          entry[name.removeprefix("dropped/")] = count
    return found


@dataclasses.dataclass(frozen=True)
class Lengths(charts.Chart):
  """Quantiles of the responses' lengths by round."""

  def missing(self, run: Run) -> str:
    return run.missing.get("rollouts", "")

  def latest(self, run: Run) -> str:
    number, found = list(run.rollouts.items())[-1]
    low, _, median, _, high = found.quantiles
    return (
        f"in round {number}: median {median:g}, 5 to 95 % {low:g} to {high:g},"
        f" mean {found.mean:.3g} tokens, longest {max(found.lengths)}"
    )

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    rounds = list(run.rollouts)
    table = np.array([found.quantiles for found in run.rollouts.values()])
    color, _, _ = charts.STYLES[0]
    for low, high, alpha in ((0, 4, 0.18), (1, 3, 0.32)):
      first, last = rollouts.QUANTILES[low], rollouts.QUANTILES[high]
      axes.bar(
          rounds,
          np.maximum(table[:, high] - table[:, low], 0.05),
          0.7 if alpha < 0.3 else 0.4,
          table[:, low],
          color=color,
          alpha=alpha,
          label=f"{first} to {last} %",
      )
    charts.plot(axes, rounds, table[:, 2], "median", charts.STYLES[0])
    means = [found.mean for found in run.rollouts.values()]
    charts.plot(axes, rounds, means, "mean", charts.STYLES[1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("round")
    axes.set_ylabel("tokens")
    axes.xaxis.get_major_locator().set_params(integer=True)


@dataclasses.dataclass(frozen=True)
class Allocated(charts.Chart):
  """How many prompts of the newest round got how many responses."""

  def missing(self, run: Run) -> str:
    if "plans" in run.missing:
      return run.missing["plans"]
    return "" if any(run.plans.values()) else "Every round was left out."

  def latest(self, run: Run) -> str:
    number, counts = _newest_plan(run)
    return (
        f"in round {number}: {len(counts)} prompts, {sum(counts)} responses,"
        f" {min(counts)} to {max(counts)} each"
    )

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    number, counts = _newest_plan(run)
    found = sorted(collections.Counter(counts).items())
    sizes, prompts = zip(*found)
    color, _ = charts.FILLS[0]
    bars = axes.bar(sizes, prompts, 0.8, color=color, edgecolor="white")
    if len(found) <= _NAMED_BARS:
      axes.bar_label(bars, fontsize=8, color=charts.INK)
    axes.set_xlim(min(sizes) - 2, max(sizes) + 2)
    axes.margins(y=0.12)
    axes.set_xlabel(f"responses to a prompt in round {number}")
    axes.set_ylabel("prompts")
    for axis in (axes.xaxis, axes.yaxis):
      axis.get_major_locator().set_params(integer=True)


@dataclasses.dataclass(frozen=True)
class Rounds(charts.Chart):
  """Responses per prompt over the rounds: least, median, most."""

  def missing(self, run: Run) -> str:
    if "plans" in run.missing:
      return run.missing["plans"]
    return "" if any(run.plans.values()) else "Every round was left out."

  def latest(self, run: Run) -> str:
    planned = [sum(counts) for counts in run.plans.values()]
    return f"{sum(planned)} responses planned in {len(planned)} rounds"

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    plans = {number: counts for number, counts in run.plans.items() if counts}
    lines = (("most", np.max), ("median", np.median), ("least", np.min))
    for (label, reduce), style in zip(lines, charts.STYLES):
      values = [reduce(counts) for counts in plans.values()]
      charts.plot(axes, list(plans), values, label, style)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("round")
    axes.set_ylabel("responses per prompt")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _verdict(group: Mapping[str, int]) -> str:
  if not group["correct"]:
    return "none right"
  whole = group["correct"] == group["samples"]
  return "all right" if whole else "some right"


def _newest_plan(run: Run) -> tuple[int, Sequence[int]]:
  """Returns number and counts of the newest round that generates something."""
  number = max(n for n, counts in run.plans.items() if counts)
  return number, run.plans[number]
