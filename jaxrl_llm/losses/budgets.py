"""CPPO's prefix budget: a trust region over the prefix of the sequence."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import divergences
from jaxrl_llm.losses import kernels
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import tokens as tokens_lib
from jaxrl_llm.losses import trust_regions

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Spending:
  """What a prefix has spent; all float [B, T], 0 where masked.

  Attributes:
    divergences: D_t.
    position_weights: ω_t.
    costs: Z_t = ω_t D_t.
    budgets: c_t = min{δ, δ + δ_b W_{t−1} − S_{t−1}}.
    shares: S_t / (δ + δ_b W_{t−1}).
    rates: δ_b of the sequence.
  """

  divergences: Array
  position_weights: Array
  costs: Array
  budgets: Array
  shares: Array
  rates: Array


@dataclasses.dataclass(frozen=True)
class PrefixBudget(divergences.Divergence):
  """CPPO (arXiv 2606.10968) Eq 8 and 10, Eq 19-20 soft, Eq 22 dynamic."""

  delta: float | None = parts.key(
      None,
      "δ: largest divergence of one token; unset: 0.15 for TV, 0.05 for KL"
      " (divergence) or 0.1 for KL (prefix_budget)",
      above=0.0,
  )
  delta_b: float | None = parts.key(
      None,
      "δ_b: divergence that each token of the prefix adds to the budget, floor"
      " of a dynamic budget; unset: 0.015 for TV, 0.002 for KL",
      at_least=0.0,
  )
  omega_min: float = parts.key(
      0.8,
      "ω_min: weight of the last response token's divergence; the first's is"
      " 1",
      above=0.0,
      at_most=1.0,
  )
  budget: str = parts.key(
      "fixed",
      "δ_b: fixed, or dynamic (a quantile of the sequence's divergences)",
      choices=("fixed", "dynamic"),
  )
  budget_quantile: float = parts.key(
      0.9, "quantile of a dynamic budget, linear", at_least=0.0, at_most=1.0
  )
  budget_cap: float = parts.key(
      2.0, "a dynamic δ_b is at most this many times its floor", at_least=1.0
  )
  gate: str = parts.key(
      "hard",
      "tokens over budget: hard drops them, soft scales them by 1/excess",
      choices=("hard", "soft"),
  )

  needs_statistics = False
  kept = ""

  @property
  def threshold(self) -> Array | float:
    """δ, by kind of divergence where unset."""
    if self.delta is not None:
      return self.delta
    return 0.15 if self.kind == "tv" else 0.1

  @property
  def rate(self) -> Array | float:
    """δ_b or its floor, by kind of divergence where unset."""
    if self.delta_b is not None:
      return self.delta_b
    return 0.015 if self.kind == "tv" else 0.002

  def idle_keys(self) -> frozenset[str]:
    idle = super().idle_keys()
    if self.budget == "fixed":
      idle |= {"budget_quantile", "budget_cap"}
    return idle

  def spending(self, tokens: tokens_lib.Tokens) -> Spending:
    """Walks every prefix once."""
    layout = tokens.layout
    measured = self.divergences(tokens)
    steps = jnp.maximum(layout.lengths - 1.0, 1.0)
    omegas = 1.0 - (1.0 - self.omega_min) / steps * (layout.positions - 1.0)
    omegas = masked.fill(omegas, layout.mask)
    rates = jnp.full_like(omegas, self.rate)
    if self.budget == "dynamic":
      quantiles = masked.sequence_quantiles(
          measured, layout, self.budget_quantile
      )
      rates = jnp.clip(quantiles, rates, self.budget_cap * rates)
    costs = omegas * measured
    kernel = kernels.form(
        kernels.prefix_budgets, kernels.prefix_budgets_parallel
    )
    budgets, shares = jax.vmap(kernel, in_axes=(0, 0, 0, 0, None))(
        costs, rates * omegas, layout.mask, layout.starts, self.threshold
    )
    return Spending(
        measured,
        omegas,
        costs,
        masked.fill(budgets, layout.mask),
        masked.fill(shares, layout.mask),
        masked.fill(rates, layout.mask),
    )

  def __call__(
      self,
      log_ratios: Array,
      tokens: tokens_lib.Tokens,
      statistics: trust_regions.Statistics,
  ) -> surrogates.Region:
    spending = self.spending(tokens)
    ratios = jax.lax.stop_gradient(jnp.exp(log_ratios))
    away = trust_regions.away(log_ratios, tokens.advantages)
    if self.gate == "soft":
      excess = jnp.maximum(spending.costs / self.threshold, spending.shares)
      gates = jnp.where(away, 1.0 / jnp.maximum(excess, 1.0), 1.0)
      active = jnp.ones_like(away)
    else:
      gates = jnp.ones_like(ratios)
      active = ~(away & (spending.costs > spending.budgets))
    values = masked.fill(ratios, active)
    return surrogates.Region(active, values, gates, spending.shares)

  def describe(self, r: str, anchor: str) -> str:
    rate = f"{self.rate:g}"
    if self.budget == "dynamic":
      rate = (
          f"the {self.budget_quantile:g}-quantile of the sequence's D within "
          f"[{self.rate:g}, {self.budget_cap * self.rate:g}]"
      )
    action = "dropped" if self.gate == "hard" else "scaled by 1/excess"
    return (
        f"{action} where A ({r} − 1) > 0 and ω_t D_t > c_t = min(δ, δ + δ_b "
        f"W_{{t−1}} − S_{{t−1}}), δ = {self.threshold:g}, δ_b = {rate}, ω from "
        f"1 to {self.omega_min:g} over the response, W and S prefix sums of ω "
        f"and ωD; " + self.describe_divergence(anchor)
    )
