"""From ratio, trust region and advantage to the loss of a token.

Losses are minimised. A surrogate reads the ratio r [B, T], what the trust
region decided, A and log π, and returns ℓ_t [B, T].
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Region:
  """The verdict of a trust region; float arrays are detached, [B, T].

  Attributes:
    active: bool, tokens whose gradient flows.
    values: the ratio after the region: what a detached weight takes, and what
      stands in for the ratio of a token that is not active (0 drops it).
    gates: factor of active tokens, in [0, 1].
    budget_shares: share of the prefix budget in use, or None.
    bounds: (low, high) on the log of the ratio, nats, beyond which the region
      cuts what moves away; scalars or [B, T], not finite where a token has
      none. None where the region does not bound the ratio.
  """

  active: Array
  values: Array
  gates: Array
  budget_shares: Array | None = None
  bounds: tuple[Array, Array] | None = None

  def exempting(self, exempt: Array) -> "Region":
    """The verdict with `exempt` tokens left alone at ratio 1."""
    return dataclasses.replace(
        self,
        active=self.active | exempt,
        values=jnp.where(exempt, 1.0, self.values),
        gates=jnp.where(exempt, 1.0, self.gates),
    )


class Surrogate(parts.Part):
  """A surrogate that leaves the ratio as the trust region left it."""

  # Whether it compares the sequences of a mini-batch (losses/preference.py).
  pairwise = False
  # Whether the loss of a token that is cut keeps `Region.values`, or is 0.
  keeps_values = False

  def weighed(
      self, ratios: Array, region: Region, advantages: Array
  ) -> Region:
    """The verdict with what the surrogate itself does to the ratio."""
    return region

  def factors(self, region: Region) -> Array:
    """float [B, T]: what multiplies A_t ∇log π_t, of a weighed verdict.

    A ratio that several tokens share counts as the token's own.
    """
    return masked.fill(region.values * region.gates, region.active)


@dataclasses.dataclass(frozen=True)
class Ratio(Surrogate):
  """ℓ_t = −A_t r_t."""

  formula = "ℓ_t = −A_t {r}"
  detached = ""
  keeps_values = True

  def __call__(
      self, ratios: Array, region: Region, advantages: Array, logprobs: Array
  ) -> Array:
    kept = ratios * region.gates
    return -advantages * jnp.where(region.active, kept, region.values)


@dataclasses.dataclass(frozen=True)
class WeightedLogProb(Surrogate):
  """ℓ_t = −sg[w_t] A_t log π_t, w_t the ratio within absolute bounds."""

  weight_min: float | None = parts.key(
      None, "lower bound of the detached ratio weight, absolute", at_least=0.0
  )
  weight_max: float | None = parts.key(
      None, "upper bound of the detached ratio weight, absolute", above=0.0
  )

  formula = "ℓ_t = −sg[w_t] A_t log π_t, w_t = {r} within {bounds}"
  detached = "the ratio weight w"

  def weighed(
      self, ratios: Array, region: Region, advantages: Array
  ) -> Region:
    weights = region.values
    if self.weight_max is not None:
      weights = jnp.minimum(weights, self.weight_max)
    if self.weight_min is not None:
      weights = jnp.maximum(weights, self.weight_min)
    return dataclasses.replace(region, values=weights)

  def __call__(
      self, ratios: Array, region: Region, advantages: Array, logprobs: Array
  ) -> Array:
    region = self.weighed(ratios, region, advantages)
    losses = -region.values * region.gates * advantages * logprobs
    return masked.fill(losses, region.active)


@dataclasses.dataclass(frozen=True)
class LogProb(Surrogate):
  """ℓ_t = −A_t log π_t: REINFORCE; the ratio only feeds the trust region."""

  formula = "ℓ_t = −A_t log π_t"
  detached = ""

  def __call__(
      self, ratios: Array, region: Region, advantages: Array, logprobs: Array
  ) -> Array:
    losses = -region.gates * advantages * logprobs
    return masked.fill(losses, region.active)

  def factors(self, region: Region) -> Array:
    return masked.fill(region.gates, region.active)


@dataclasses.dataclass(frozen=True)
class Sigmoid(Surrogate):
  """SAPO (arXiv 2511.20347): ℓ_t = −A (4/τ) σ(τ(r−1)).

  With p = σ(τ(r−1)) its gradient is that of −A r, times 4 p (1−p) ≤ 1.
  """

  tau_positive: float = parts.key(
      1.0, "sigmoid temperature where A > 0, per unit of ratio", above=0.0
  )
  tau_negative: float = parts.key(
      1.05, "sigmoid temperature where A <= 0, per unit of ratio", above=0.0
  )

  formula = (
      "ℓ_t = −A_t (4/τ) σ(τ({r} − 1)), τ = {tau_positive:g} where A > 0,"
      " else {tau_negative:g}"
  )
  detached = ""

  def _temperatures(self, advantages: Array) -> Array:
    return jnp.where(advantages > 0, self.tau_positive, self.tau_negative)

  def weighed(
      self, ratios: Array, region: Region, advantages: Array
  ) -> Region:
    tau = self._temperatures(advantages)
    p = jax.nn.sigmoid(tau * (jax.lax.stop_gradient(ratios) - 1.0))
    return dataclasses.replace(region, gates=4.0 * p * (1.0 - p))

  def __call__(
      self, ratios: Array, region: Region, advantages: Array, logprobs: Array
  ) -> Array:
    tau = self._temperatures(advantages)
    return -advantages * (4.0 / tau) * jax.nn.sigmoid(tau * (ratios - 1.0))


SURROGATES = {
    "ratio": Ratio,
    "weighted_log_prob": WeightedLogProb,
    "log_prob": LogProb,
    "sigmoid": Sigmoid,
}
