"""Which tokens an update may still move, and what stands in for the others.

A region reads the log-ratios (nats) that the ratio part made and the
advantages, and returns a `surrogates.Region`. Bounds are closed: a token
exactly on a bound is kept. Gates are explicit booleans, never the gradient of
a clip at a tie.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import divergences
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import tokens as tokens_lib

Array = jax.Array
Statistics = Mapping[str, Array] | None

# What a region leaves to the loss of a cut token, where the surrogate keeps it.
KEPT_BOUND = "the bound's value"
DUAL_CLIP = dict(
    doc="c: tokens with A < 0 and ratio > c are cut; unset: none", above=1.0
)


def away(log_ratios: Array, advantages: Array) -> Array:
  """A_t (ratio − 1) > 0: the update moves the policy off the anchor."""
  return ((advantages > 0) & (log_ratios > 0)) | (
      (advantages < 0) & (log_ratios < 0)
  )


def bounded(
    ratios: Array,
    advantages: Array,
    low: Array,
    high: Array,
    dual: Array | None,
) -> surrogates.Region:
  """PPO's pessimistic interval: cut beyond the bound on the away side."""
  over = (advantages > 0) & (ratios > high)
  under = (advantages < 0) & (ratios < low)
  active = ~(over | under)
  values = jnp.where(over, high, jnp.where(under, low, ratios))
  if dual is not None:
    extreme = (advantages < 0) & (ratios > dual)
    active &= ~extreme
    values = jnp.where(extreme, dual, values)
  return surrogates.Region(
      active,
      jax.lax.stop_gradient(values),
      jnp.ones_like(ratios),
      bounds=jax.lax.stop_gradient((jnp.log(low), jnp.log(high))),
  )


@dataclasses.dataclass(frozen=True)
class NoRegion(parts.Part):
  """Every token keeps its gradient."""

  topk = 0
  needs_statistics = False
  kept = ""

  def __call__(
      self, log_ratios: Array, tokens: tokens_lib.Tokens, statistics: Statistics
  ) -> surrogates.Region:
    ratios = jax.lax.stop_gradient(jnp.exp(log_ratios))
    return surrogates.Region(
        jnp.ones_like(tokens.layout.mask), ratios, jnp.ones_like(ratios)
    )

  def describe(self, r: str, anchor: str) -> str:
    return "none: every token keeps its gradient"


@dataclasses.dataclass(frozen=True)
class Clip(parts.Part):
  """PPO: max(−rA, −clip(r, 1−ε_lo, 1+ε_hi) A), and the dual clip."""

  clip_low: float = parts.key(
      0.2, "ε_lo: with A < 0, ratios below 1 − ε_lo are cut", above=0.0
  )
  clip_high: float = parts.key(
      0.2, "ε_hi: with A > 0, ratios above 1 + ε_hi are cut", above=0.0
  )
  dual_clip: float | None = parts.key(None, **DUAL_CLIP)

  topk = 0
  needs_statistics = False
  kept = KEPT_BOUND

  def __call__(
      self, log_ratios: Array, tokens: tokens_lib.Tokens, statistics: Statistics
  ) -> surrogates.Region:
    return bounded(
        jnp.exp(log_ratios),
        tokens.advantages,
        1.0 - self.clip_low,
        1.0 + self.clip_high,
        self.dual_clip,
    )

  def describe(self, r: str, anchor: str) -> str:
    text = (
        f"cut where A > 0 and {r} > {1 + self.clip_high:g}, or A < 0 and {r} < "
        f"{1 - self.clip_low:g}"
    )
    if self.dual_clip is not None:
      text += f"; dual clip: cut where A < 0 and {r} > {self.dual_clip:g}"
    return text


@dataclasses.dataclass(frozen=True)
class PositionClip(parts.Part):
  """CTPO (arXiv 2605.07331): log bounds ∓ε t^p at response position t."""

  log_clip_low: float = parts.key(
      0.025, "ε_lo in nats: log-ratios below −ε_lo t^power are cut", above=0.0
  )
  log_clip_high: float = parts.key(
      0.05, "ε_hi in nats: log-ratios above ε_hi t^power are cut", above=0.0
  )
  power: float = parts.key(
      0.5, "exponent of the response position t (from 1) in the log bounds"
  )
  dual_log_clip: float | None = parts.key(
      None,
      "nats: with A < 0, log-ratios above this times t^power are cut;"
      " unset: none",
      above=0.0,
  )

  topk = 0
  needs_statistics = False
  kept = KEPT_BOUND

  def __call__(
      self, log_ratios: Array, tokens: tokens_lib.Tokens, statistics: Statistics
  ) -> surrogates.Region:
    advantages = tokens.advantages
    scale = jnp.maximum(tokens.layout.positions, 1.0) ** self.power
    high, low = self.log_clip_high * scale, -self.log_clip_low * scale
    over = (advantages > 0) & (log_ratios > high)
    under = (advantages < 0) & (log_ratios < low)
    active = ~(over | under)
    values = jnp.where(over, high, jnp.where(under, low, log_ratios))
    if self.dual_log_clip is not None:
      dual = self.dual_log_clip * scale
      extreme = (advantages < 0) & (log_ratios > dual)
      active &= ~extreme
      values = jnp.where(extreme, dual, values)
    values = jax.lax.stop_gradient(jnp.exp(values))
    return surrogates.Region(
        active, values, jnp.ones_like(values), bounds=(low, high)
    )

  def describe(self, r: str, anchor: str) -> str:
    text = (
        f"cut where A > 0 and log {r} > {self.log_clip_high:g} t^"
        f"{self.power:g}, or A < 0 and log {r} < −{self.log_clip_low:g} t^"
        f"{self.power:g} nats, t counts response tokens from 1"
    )
    if self.dual_log_clip is not None:
      text += (
          f"; dual clip: cut where A < 0 and log {r} > "
          f"{self.dual_log_clip:g} t^{self.power:g}"
      )
    return text


@dataclasses.dataclass(frozen=True)
class DivergenceMask(divergences.Divergence):
  """DPPO (arXiv 2602.04879): drops away tokens with D_t > δ."""

  delta: float | None = parts.key(
      None,
      "δ: largest divergence of one token; unset: 0.15 for TV, 0.05 for KL"
      " (divergence) or 0.1 for KL (prefix_budget)",
      above=0.0,
  )

  needs_statistics = False
  kept = ""

  @property
  def threshold(self) -> Array | float:
    """δ, by kind of divergence where unset."""
    if self.delta is not None:
      return self.delta
    return 0.15 if self.kind == "tv" else 0.05

  def __call__(
      self, log_ratios: Array, tokens: tokens_lib.Tokens, statistics: Statistics
  ) -> surrogates.Region:
    ratios = jax.lax.stop_gradient(jnp.exp(log_ratios))
    far = self.divergences(tokens) > self.threshold
    active = ~(far & away(log_ratios, tokens.advantages))
    values = masked.fill(ratios, active)
    return surrogates.Region(active, values, jnp.ones_like(ratios))

  def describe(self, r: str, anchor: str) -> str:
    return (
        f"dropped where A ({r} − 1) > 0 and D_t > {self.threshold:g}; "
        + self.describe_divergence(anchor)
    )


@dataclasses.dataclass(frozen=True)
class ProductClip(parts.Part):
  """ACPO (arXiv 2609.36816) Eq 5: J = clip(r A, −α, α), no min."""

  alpha: float = parts.key(3.0, "α: tokens with |r A| > α are cut", above=0.0)
  boundary: str = parts.key(
      "keep",
      "a token with |r A| exactly α: keep its gradient, or cut (strict)",
      choices=("keep", "strict"),
  )

  topk = 0
  needs_statistics = False

  @property
  def kept(self) -> str:
    """See surrogates.Surrogate.keeps_values."""
    return f"∓{self.alpha:g}"

  def __call__(
      self, log_ratios: Array, tokens: tokens_lib.Tokens, statistics: Statistics
  ) -> surrogates.Region:
    ratios = jax.lax.stop_gradient(jnp.exp(log_ratios))
    sizes = ratios * jnp.abs(tokens.advantages)
    cut = sizes >= self.alpha if self.boundary == "strict" else (
        sizes > self.alpha
    )
    limits = self.alpha / jnp.where(cut, jnp.abs(tokens.advantages), 1.0)
    values = jnp.where(cut, limits, ratios)
    return surrogates.Region(~cut, values, jnp.ones_like(ratios))

  def describe(self, r: str, anchor: str) -> str:
    sign = "≥" if self.boundary == "strict" else ">"
    return f"cut where |{r} A| {sign} {self.alpha:g}, in either direction"


@dataclasses.dataclass(frozen=True)
class Taper(parts.Part):
  """TOPR (arXiv 2503.14286): weight 1 where R ≥ 0, min(ratio, 1) below."""

  taper_zero: str = parts.key(
      "positive",
      "branch of a reward of exactly 0: positive (weight 1) or negative"
      " (weight min(ratio, 1))",
      choices=("positive", "negative"),
  )

  topk = 0
  needs_statistics = False
  kept = ""

  def __call__(
      self, log_ratios: Array, tokens: tokens_lib.Tokens, statistics: Statistics
  ) -> surrogates.Region:
    ratios = jax.lax.stop_gradient(jnp.exp(log_ratios))
    signal = tokens.advantages
    negative = signal <= 0 if self.taper_zero == "negative" else signal < 0
    values = jnp.where(negative, jnp.minimum(ratios, 1.0), 1.0)
    return surrogates.Region(
        jnp.ones_like(negative), values, jnp.ones_like(values)
    )

  def describe(self, r: str, anchor: str) -> str:
    sign = "≤" if self.taper_zero == "negative" else "<"
    return f"w = min({r}, 1) where A {sign} 0, else 1; nothing is dropped"
