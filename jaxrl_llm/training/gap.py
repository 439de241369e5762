"""Why a ratio is not 1 before the first update: the gap, split by cause.

With unchanged weights every log-ratio log π − log μ would be 0. The gap is the
mean of its absolute value over the trained tokens of a few records. They are
scored anew, each alone in a row without padding: what the gap loses when a
cause is undone is that cause's part. Causes that undo at least a third of what
is left are undone in turn, the largest first; what rounding cannot explain of
the rest is laid to the weights.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import agreement
from jaxrl_llm.training import probe as probe_lib

# Name in the metrics -> name in the table.
CAUSES = {
    "support": "truncated support",
    "temperature": "temperature",
    "precision": "precision",
    "layout": "padding or positions",
    "weights": "weights or version",
}
# What a cause must undo of the gap that is left to be believed.
_LEAST_SHARE = 1 / 3
# Temperatures that are tried, as factors of the recorded ones.
_FACTORS = (0.25, 4.0)
_SEARCH_STEPS = 12


@dataclasses.dataclass(frozen=True)
class Gap:
  """A step-0 gap and its parts; all in nats, means of |log π − log μ|.

  Attributes:
    records: that were scored anew.
    tokens: trained tokens of these.
    whole: as the trainer scored them, in packed rows.
    parts: by cause, see CAUSES; they add up to the whole.
    hints: what was found of a cause, in words.
  """

  records: int
  tokens: int
  whole: float
  parts: Mapping[str, float]
  hints: Mapping[str, str]

  @property
  def cause(self) -> str:
    """The cause with the largest part; precision where there is no gap."""
    return max(self.parts, key=self.parts.get) if self.whole else "precision"

  def numbers(self) -> dict[str, float]:
    """Returns the figures for the metrics file."""
    parts = {f"step0/gap_{name}": x for name, x in self.parts.items()}
    return {"step0/gap": self.whole, "step0/gap_tokens": self.tokens} | parts

  def lines(self) -> list[str]:
    """Returns the table as text; none where rounding explains all of it."""
    if self.whole <= agreement.FLOAT32_TOLERANCE:
      return []
    lines = [
        f"why the ratio is not 1: mean |log-ratio| {self.whole:.2e} nats on"
        f" {self.tokens} tokens of {self.records} records, of which"
    ]
    for name, title in CAUSES.items():
      hint = self.hints.get(name, "")
      line = f"  {title:<22}{self.parts[name]:>10.2e}  {hint}"
      lines.append(line.rstrip())
    return lines


def explain(
    policy: policy_lib.Policy,
    params: types.PyTree,
    rollouts: Sequence[types.Rollout],
    packed: Sequence[np.ndarray],
    mesh: jax.sharding.Mesh,
) -> Gap:
  """Splits the gap between sampler and trainer on a few of the records.

  Args:
    policy: the network, as it trains.
    params: its parameters before the first update.
    rollouts: N records, one with a trained token among them.
    packed: float [R] each, nats: log-probs by `policy` in the rows that it
      trains on, as prepare or recompute.logprobs give them.
    mesh: where rows and parameters lie.
  """
  probe = probe_lib.Probe.of(policy, params, rollouts, packed, mesh)
  whole = probe.distance(probe.packed)
  parts = dict.fromkeys(CAUSES, 0.0)
  if whole <= agreement.FLOAT32_TOLERANCE:
    parts["precision"] = whole
    hints = {"precision": "float32 rounding"}
    return Gap(len(probe.rollouts), probe.tokens, whole, parts, hints)
  rounded, exact = probe.rounded(), probe.score(probe_lib.Setting()).logprobs
  rounding = probe.mean(rounded - exact)
  floor = agreement.FLOAT32_TOLERANCE + 2 * rounding
  hints = {
      "precision": f"bfloat16 is {rounding:.1e} from float32",
      "weights": probe.versions(),
  }
  trains_exact = policy.compute_dtype != "bfloat16"
  alone = exact if trains_exact else rounded
  slack = agreement.FLOAT32_TOLERANCE if trains_exact else floor
  if probe.mean(probe.packed - alone) > slack:
    parts["layout"] = max(0.0, whole - probe.distance(alone))
    hints["layout"] = "packed rows differ from each record alone"
  rest = _undo(probe, floor, parts, hints)
  unexplained = max(0.0, whole - sum(parts.values()))
  parts["weights"] = min(max(0.0, rest - floor), unexplained)
  parts["precision"] = unexplained - parts["weights"]
  return Gap(len(probe.rollouts), probe.tokens, whole, parts, hints)


def _undo(
    probe: probe_lib.Probe,
    floor: float,
    parts: dict[str, float],
    hints: dict[str, str],
) -> float:
  """Undoes causes while they matter; returns the gap that is left, nats.

  Args:
    probe: of the records.
    floor: what rounding explains; below it nothing is undone.
    parts: by cause; is added to.
    hints: by cause; is added to.
  """
  setting = probe_lib.Setting()
  rest = probe.gap(setting)
  searches = {
      "support": _support, "temperature": _temperature, "layout": _layout
  }
  while searches and rest > floor:
    options = {
        cause: min(search(probe, setting), key=probe.gap)
        for cause, search in searches.items()
    }
    cause = min(options, key=lambda name: probe.gap(options[name]))
    after = probe.gap(options[cause])
    if after > rest * (1 - _LEAST_SHARE):
      break
    parts[cause] += rest - after
    setting, rest = options[cause], after
    hints[cause] = probe.describe(cause, setting)
    del searches[cause]
  return rest


def _support(
    probe: probe_lib.Probe, setting: probe_lib.Setting
) -> list[probe_lib.Setting]:
  """What the sampler may have cut the vocabulary to."""
  return [
      dataclasses.replace(setting, support=support)
      for support in probe.supports()
  ]


def _layout(
    probe: probe_lib.Probe, setting: probe_lib.Setting
) -> list[probe_lib.Setting]:
  """Log-probs of a neighbour, or positions that jump at the response."""
  return [
      dataclasses.replace(setting, **{name: step})
      for name in ("shift", "jump")
      for step in (-1, 1)
  ]


def _temperature(
    probe: probe_lib.Probe, setting: probe_lib.Setting
) -> list[probe_lib.Setting]:
  """The temperature that fits best, by golden section, and 1."""
  at = lambda factor: dataclasses.replace(setting, factor=float(factor))
  section = (np.sqrt(5) - 1) / 2
  low, high = np.log(_FACTORS)
  left, right = high - section * (high - low), low + section * (high - low)
  for _ in range(_SEARCH_STEPS):
    if probe.gap(at(np.exp(left))) < probe.gap(at(np.exp(right))):
      high, right = right, left
      left = high - section * (high - low)
    else:
      low, left = left, right
      right = low + section * (high - low)
  return [at(np.exp((low + high) / 2)), at(1 / probe.temperature)]
