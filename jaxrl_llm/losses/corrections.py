"""What stands on top of the loss for the gap between two recorded policies.

w_t = proximal / behavior (bypass REINFORCE: live / behavior), always detached.
A weight multiplies the loss of a token; a rejection removes the token.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts

Array = jax.Array

_SUM_CAP = 20.0
_LEVEL = dict(
    doc=(
        "weights per token, per sequence (product of the tokens') or geometric"
        " (their geometric mean)"
    ),
    choices=("token", "sequence", "geometric"),
)


def at_level(log_weights: Array, where: masked.Layout, level: str) -> Array:
  """Log-weights [B, T] of the token, or of its whole sequence at each token.

  Args:
    log_weights: float [B, T], clamped log w_t in nats, 0 where masked.
    where: the layout.
    level: token, sequence (sum) or geometric (mean).
  """
  if level == "token":
    return log_weights
  sums = masked.sequence_sums(log_weights, where)
  if level == "geometric":
    sums = sums / jnp.maximum(where.lengths, 1.0)
  return masked.cap(sums, _SUM_CAP)


def mean_weight(weights: Array, where: masked.Layout, level: str) -> Array:
  """Mean over valid tokens, or over sequences where a sequence shares one."""
  counted = where.mask
  if level != "token":
    counted &= where.positions == 1
  total = jnp.sum(weights, where=counted)
  count = jnp.sum(counted, dtype=weights.dtype)
  return jnp.where(total > 0, total / jnp.maximum(count, 1.0), 1.0)


@dataclasses.dataclass(frozen=True)
class NoWeight(parts.Part):
  """No weight: w is ignored."""

  normalized = False
  level = "token"

  def describe(self) -> str:
    return "weight: none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Levelled(parts.Part):
  """A weight per token or per sequence, of mean 1 where asked."""

  correction_level: str = parts.key("token", **_LEVEL)
  correction_normalize: bool = parts.key(
      False, "divide weights by their mean over the mini-batch"
  )

  @property
  def normalized(self) -> bool:
    return self.correction_normalize

  @property
  def level(self) -> str:
    return self.correction_level


@dataclasses.dataclass(frozen=True)
class TruncatedImportanceSampling(_Levelled):
  """TIS: min(w, C)."""

  correction_cap: float = parts.key(
      2.0, "C: largest weight of tis, w = proximal/behavior", above=0.0
  )

  def __call__(self, log_weights: Array, where: masked.Layout) -> Array:
    log_weights = at_level(log_weights, where, self.correction_level)
    return jnp.minimum(jnp.exp(log_weights), self.correction_cap)

  def describe(self) -> str:
    return (
        f"tis: sg[min(w, {self.correction_cap:g})] per {self.level}"
        + _normalized(self)
    )


@dataclasses.dataclass(frozen=True)
class IcePop(_Levelled):
  """IcePop: w inside [lo, hi], 0 outside; the denominator is unchanged."""

  correction_low: float = parts.key(
      0.5, "icepop: weights below this become 0", at_least=0.0
  )
  correction_high: float = parts.key(
      5.0, "icepop: weights above this become 0", above=0.0
  )

  def __call__(self, log_weights: Array, where: masked.Layout) -> Array:
    weights = jnp.exp(at_level(log_weights, where, self.correction_level))
    inside = (weights >= self.correction_low) & (
        weights <= self.correction_high
    )
    return jnp.where(inside, weights, 0.0)

  def describe(self) -> str:
    return (
        f"icepop: sg[w] per {self.level} inside [{self.correction_low:g}, "
        f"{self.correction_high:g}], 0 outside, denominator unchanged"
        + _normalized(self)
    )


@dataclasses.dataclass(frozen=True)
class Decoupled(parts.Part):
  """Decoupled PPO (arXiv 2505.24298): w, optionally capped."""

  decoupled_cap: float | None = parts.key(
      None, "cap of the decoupled weight w; unset: none", above=0.0
  )
  decoupled_action: str = parts.key(
      "mask",
      "decoupled weights above the cap: mask zeroes, clamp lowers them",
      choices=("mask", "clamp"),
  )

  normalized = False
  level = "token"

  def idle_keys(self) -> frozenset[str]:
    return frozenset(
        ["decoupled_action"] if self.decoupled_cap is None else []
    )

  def __call__(self, log_weights: Array, where: masked.Layout) -> Array:
    weights = jnp.exp(log_weights)
    if self.decoupled_cap is None:
      return weights
    above = weights > self.decoupled_cap
    limit = 0.0 if self.decoupled_action == "mask" else self.decoupled_cap
    return jnp.where(above, limit, weights)

  def describe(self) -> str:
    text = "decoupled: sg[w] per token"
    if self.decoupled_cap is not None:
      action = "0" if self.decoupled_action == "mask" else "the cap"
      text += f", above {self.decoupled_cap:g} it is {action}"
    return text + "; denominator unchanged"


def _normalized(weight: TruncatedImportanceSampling | IcePop) -> str:
  if not weight.normalized:
    return ""
  return ", divided by its mean over the mini-batch"


@dataclasses.dataclass(frozen=True)
class NoRejection(parts.Part):
  """Every token stays."""

  shrinks = False

  def describe(self) -> str:
    return "rejection: none"


@dataclasses.dataclass(frozen=True)
class Rejection(parts.Part):
  """MIS: drops tokens or sequences whose w fails a test.

  k1 keeps lo ≤ w ≤ hi; k1_inverse keeps lo ≤ 1/w ≤ hi (verl's reading of its
  own option); k2 keeps ½ log²w ≤ hi; k3 keeps w − 1 − log w ≤ hi.
  """

  rejection_high: float = parts.key(
      2.0, "largest accepted w (k1) or statistic (k2, k3)", above=0.0
  )
  rejection_low: float | None = parts.key(
      None, "smallest accepted w of k1; unset: 1/rejection_high", at_least=0.0
  )
  rejection_level: str = parts.key("token", **_LEVEL)
  rejection_statistic: str = parts.key(
      "k1",
      "test on w: k1 (w), k1_inverse (1/w), k2 (½ log²w), k3 (w − 1 − log w)",
      choices=("k1", "k1_inverse", "k2", "k3"),
  )
  rejection_denominator: str = parts.key(
      "kept",
      "tokens that the denominator counts: kept, or original (all)",
      choices=("kept", "original"),
  )

  def idle_keys(self) -> frozenset[str]:
    one_sided = self.rejection_statistic in ("k2", "k3")
    return frozenset(["rejection_low"] if one_sided else [])

  @property
  def shrinks(self) -> bool:
    """Whether rejected tokens leave the denominator."""
    return self.rejection_denominator == "kept"

  def keeps(self, log_weights: Array, where: masked.Layout) -> Array:
    """bool [B, T]: tokens that stay."""
    logs = at_level(log_weights, where, self.rejection_level)
    high = self.rejection_high
    if self.rejection_statistic == "k2":
      return where.mask & (0.5 * jnp.square(logs) <= high)
    if self.rejection_statistic == "k3":
      return where.mask & (jnp.exp(logs) - 1.0 - logs <= high)
    low = 1.0 / high if self.rejection_low is None else self.rejection_low
    weights = jnp.exp(
        -logs if self.rejection_statistic == "k1_inverse" else logs
    )
    return where.mask & (weights >= low) & (weights <= high)

  def describe(self) -> str:
    tests = {
        "k1": "{low:g} ≤ w ≤ {high:g}",
        "k1_inverse": "{low:g} ≤ 1/w ≤ {high:g}",
        "k2": "½ log²w ≤ {high:g}",
        "k3": "w − 1 − log w ≤ {high:g}",
    }
    high = self.rejection_high
    low = 1 / high if self.rejection_low is None else self.rejection_low
    test = tests[self.rejection_statistic].format(low=low, high=high)
    return (
        f"rejection: keeps {test} per {self.rejection_level}; the denominator "
        f"counts {self.rejection_denominator} tokens"
    )


WEIGHTS = {
    "none": NoWeight,
    "tis": TruncatedImportanceSampling,
    "icepop": IcePop,
    "decoupled": Decoupled,
}
REJECTIONS = {"none": NoRejection, "rejection": Rejection}
