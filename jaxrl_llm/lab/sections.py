"""The sections of the report, and the charts of each."""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from jaxrl_llm.evaluation import table
from jaxrl_llm.lab import charts
from jaxrl_llm.lab import heat
from jaxrl_llm.lab import round_charts

Axes = charts.Axes
Run = charts.Run


@dataclasses.dataclass(frozen=True)
class Accuracy(charts.Chart):
  """Means over the held-out problems with their intervals, over updates."""

  def missing(self, run: Run) -> str:
    return run.missing.get("evaluations", "")

  def latest(self, run: Run) -> str:
    title, newest = list(run.evaluations.items())[-1]
    exact = newest.estimates["exact_match"]
    level = newest.settings.confidence
    return (
        f"{title}: exact match {_percent(exact.value)} with a {level:.0%}"
        f" interval of {_percent(exact.low)} to {_percent(exact.high)}"
    )

  def draw(self, axes: Axes, run: Run, runs: Sequence[Run]) -> None:
    found = list(run.evaluations.values())
    steps = np.array([each.details["updates"] for each in found], float)
    names = [
        name for name in found[-1].estimates
        if name in ("exact_match", "majority_vote") or name.startswith("pass@")
    ]
    # pass@1 is the exact match, where every verification gave a verdict.
    names = [name for name in names if name != "pass@1"][: len(charts.STYLES)]
    shift = max(np.ptp(steps), 1.0) * 0.012
    for number, (name, style) in enumerate(zip(names, charts.STYLES)):
      estimates = [each.estimates[name] for each in found]
      values = np.array([one.value for one in estimates]) * 100
      ends = np.array([(one.low, one.high) for one in estimates]).T * 100
      color, dash, marker = style
      axes.errorbar(
          steps + shift * number, values, np.abs(ends - values), color=color,
          linestyle=dash, marker=marker, markersize=4, capsize=3,
          label=table.TITLES.get(name, name),
      )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("update")
    axes.set_ylabel("percent")


@dataclasses.dataclass(frozen=True)
class Survivors(charts.Lines):
  """What curation left; a run without one says so."""

  def missing(self, run: Run) -> str:
    if run.config.get("curation.name") == "none":
      return "curation.name=none: every record that is trained on counts."
    return super().missing(run)


@dataclasses.dataclass(frozen=True)
class Section:
  """A heading with its charts.

  Attributes:
    anchor: of the heading.
    title: the heading.
    charts: in order.
  """

  anchor: str
  title: str
  charts: Sequence[charts.Chart]


def _percent(value: float) -> str:
  return "–" if math.isnan(value) else f"{100 * value:.1f} %"


ALL = (
    Section("reward", "Reward", (
        charts.Rewards(
            "reward", "Mean reward of the rollouts",
            "A round's rollouts count as a whole, groups that teach nothing"
            " included. Fine lines: where a round begins.",
        ),
        round_charts.Groups(
            "groups", "What the groups show",
            "Only groups with unequal rewards teach an objective that compares"
            " within groups.",
        ),
    )),
    Section("accuracy", "Accuracy", (
        Accuracy(
            "accuracy", "Held-out problems",
            "Bars: confidence intervals over problems.",
        ),
    )),
    Section("responses", "Responses", (
        round_charts.Lengths(
            "lengths", "Length of the responses",
            "Bars: quantiles over the sampled responses of a round.",
        ),
        round_charts.Reasons(
            "reasons", "Why responses ended",
            "stop: the model ended it. length: the token limit did. window: it"
            " goes on in the next round.",
        ),
    )),
    Section("ratios", "Ratios", (
        charts.Lines(
            "ratios", "Ratio of live to anchor policy",
            "Over the trained tokens of an update, as the objective forms its"
            " ratio.",
            kind="update",
            lines=(("ratio/mean", "mean"), ("ratio_max", "largest"),
                   ("ratio_after_max", "largest after the region")),
            unit="ratio (log scale)", scale="log",
        ),
        charts.Lines(
            "log_ratios", "Spread of its logarithm",
            "Quantiles, exact to 0.01 nats and cut off at 2.",
            kind="update",
            lines=(("log_ratio/q99", "99 %"), ("log_ratio/q50", "median"),
                   ("log_ratio/q01", "1 %")),
            unit="nats",
        ),
        charts.Lines(
            "ess", "Effective sample size",
            "Share of the trained tokens that the token ratios of live to"
            " behaviour policy are worth.",
            kind="update", lines=(("ess/ess", "share of tokens"),),
            unit="share", whole=True,
        ),
        charts.Lines(
            "kl", "Distance to the recorded policies",
            "Estimate k3 of the KL divergence per token.",
            kind="update",
            lines=(("kl/behavior_k3", "behaviour policy"),
                   ("kl/proximal_k3", "proximal policy")),
            unit="nats",
        ),
    )),
    Section("positions", "Ratios by position", (
        heat.Heat(
            "position_log_ratio", "Token log-ratio, mean",
            "Nats. Grey: no token. Hatched: below 0.",
            quantity="log_ratio/mean", signed=True,
        ),
        heat.Heat(
            "position_cumulative", "Cumulative log-ratio, mean",
            "Nats, summed from the first token on. Hatched: below 0.",
            quantity="cumulative/mean", signed=True,
        ),
        heat.Profile(
            "position_token_profile", "Token log-ratio, newest update",
            "Quantiles of the tokens at each position; the trust region's"
            " bounds where the objective takes the ratio of tokens.",
            quantity="log_ratio", bounded="token",
        ),
        heat.Profile(
            "position_cumulative_profile",
            "Cumulative log-ratio, newest update",
            "The same of the sums from the first token on; bounds where the"
            " objective takes the cumulative ratio.",
            quantity="cumulative", bounded="cumulative",
        ),
        heat.Heat(
            "position_clip", "Share cut", "Of the tokens at a position.",
            quantity="clip", whole=True,
        ),
        heat.Heat(
            "position_ess", "Effective sample size",
            "Share of the tokens at a position that their cumulative ratios are"
            " worth.",
            quantity="ess", whole=True,
        ),
        heat.Heat(
            "position_tv", "Total variation",
            "Of live to anchor policy, per token.", quantity="tv",
        ),
        heat.Heat(
            "position_budget", "Prefix budget in use",
            "Share of it, of objectives that have one.", quantity="budget",
        ),
        heat.Heat(
            "position_contribution", "Share of the gradient's coefficients",
            "Of all |weight × ratio × advantage| of the update, those at a"
            " position.",
            quantity="contribution",
        ),
    )),
    Section("clipping", "Clip shares", (
        charts.Lines(
            "clip", "Tokens cut by the trust region",
            "Share of all trained tokens of an update.",
            kind="update", lines=(("clip", "all"),), unit="share", whole=True,
        ),
        charts.Lines(
            "clip_sides", "Which tokens are cut",
            "By the side of 1 that the ratio is on, and the sign of the"
            " advantage A.",
            kind="update",
            lines=(("clip/high_positive", "ratio > 1, A > 0"),
                   ("clip/low_negative", "ratio < 1, A < 0"),
                   ("clip/high_negative", "ratio > 1, A < 0"),
                   ("clip/low_positive", "ratio < 1, A > 0")),
            unit="share",
        ),
    )),
    Section("curation", "Survivors of curation", (
        round_charts.Used(
            "used", "What became of the records",
            "Before the first update: those trained on, and those dropped, by"
            " reason (uniform: all rewards of the group are equal).",
        ),
        Survivors(
            "survivors", "What curation left",
            "Of the records that are trained on, and of their tokens.",
            kind="batch",
            lines=(("curation/survivor_share", "records"),
                   ("curation/response_tokens_kept", "response tokens")),
            unit="share", whole=True,
        ),
    )),
    Section("allocation", "Allocation", (
        round_charts.Allocated(
            "allocation", "Responses to a prompt",
            "A histogram over the prompts of the newest planned round.",
        ),
        round_charts.Rounds(
            "allocation_rounds", "The same over the rounds",
            "Over the prompts that a round poses.",
        ),
    )),
    Section("learning", "Learning", (
        charts.Lines(
            "gradient", "Norm of the gradient", "Before it is scaled down.",
            kind="update", lines=(("grad_norm", "norm"),),
            unit="norm (log scale)", scale="log",
        ),
        charts.Lines(
            "critic", "What the critic explains",
            "Share of its targets' variance, on each fresh rollout batch.",
            kind="batch",
            lines=(("critic/explained_variance", "explained variance"),),
            unit="share",
        ),
    )),
)
