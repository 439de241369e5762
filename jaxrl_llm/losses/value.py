"""Advantages and losses of a critic: GAE, its variants, and static values.

A critic says of each response token either V(s_t), the value of the state
before the token was drawn, or Q(s_t, y_t), after it. Values, advantages and
targets are in units of reward.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.losses import advantages
from jaxrl_llm.losses import kernels
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import token_advantages

Array = jax.Array

_DISCOUNT = dict(
    doc="γ per token of the reward to go", at_least=0.0, at_most=1.0
)
_WHITENED = dict(
    doc="advantages are whitened over the response tokens of a rollout batch"
)


def gae(
    episodes: advantages.Episodes, discount: Array, decay: Array
) -> Array:
  """Generalized advantage estimation (arXiv 1506.02438), [N, T].

  A_t = td_t + γ λ A_{t+1}, td_t = rew_t + γ V(s_{t+1}) − V(s_t), masked
  tokens deleted. After the last token V is 0; where a response is unfinished,
  it is that of the last token (EGAE, arXiv 2506.15050).

  Args:
    episodes: with mask and values.
    discount: float scalar γ.
    decay: float [N], λ of each response.

  Returns:
    float [N, T]; undefined where masked.
  """
  mask, values = episodes.mask, episodes.values
  values = masked.fill(values, mask)
  rewards = token_advantages.token_scores(episodes)
  starts = token_advantages.first_tokens(mask)
  after = jnp.zeros_like(values)
  if episodes.unfinished is not None:
    after = jnp.where(episodes.unfinished[:, None], values, after)
  later = _next(values, after, mask, starts)
  errors = rewards + discount * later - values
  traces = kernels.form(
      kernels.discounted_returns, kernels.discounted_returns_parallel
  )
  return jax.vmap(traces)(errors, mask, starts, discount * decay)


def _next(values: Array, after: Array, mask: Array, starts: Array) -> Array:
  kernel = kernels.form(kernels.next_values, kernels.next_values_parallel)
  return jax.vmap(kernel)(values, after, mask, starts)


def adaptive_decay(lengths: Array, alpha: Array) -> Array:
  """λ = 1 − 1/(α l), at least 0 (VAPO, arXiv 2504.05118)."""
  return 1.0 - 1.0 / jnp.maximum(alpha * lengths, 1.0)


def _whiten(values: Array, episodes: advantages.Episodes) -> Array:
  """Whitens over the trained tokens of responses with a reward."""
  counts = (episodes.mask & episodes.valid[:, None]).astype(values.dtype)
  return token_advantages.whiten(masked.fill(values, episodes.mask), counts)


def _keep(values: Array, episodes: advantages.Episodes) -> Array:
  return masked.fill(values, episodes.mask & episodes.valid[:, None])


@dataclasses.dataclass(frozen=True)
class Gae(advantages.Advantage):
  """Generalized advantage estimation with a critic V(s)."""

  discount: float = parts.key(1.0, **_DISCOUNT)
  lambda_actor: float = parts.key(
      1.0, "λ of the advantages", at_least=0.0, at_most=1.0
  )
  lambda_alpha: float | None = parts.key(
      None,
      "α: λ of the advantages is 1 − 1/(α l), at least 0, for a response of l"
      " tokens; unset: lambda_actor",
      above=0.0,
  )
  lambda_critic: float | None = parts.key(
      None,
      "λ of the critic's targets; unset: lambda_actor, and 1 beside"
      " lambda_alpha",
      at_least=0.0,
      at_most=1.0,
  )
  whitened: bool = parts.key(True, **_WHITENED)
  value_clip: float = parts.key(
      0.5,
      "a value further than this from the one before the first update counts"
      " with the larger of its own and the clipped value's error; 0: none",
      at_least=0.0,
  )
  value_targets: str = parts.key(
      "all",
      "responses that the critic learns from: all, or finished (those that no"
      " later window continues, from their first token)",
      choices=("all", "finished"),
  )

  per_token = True
  critic = "state"

  @property
  def finished_only(self) -> bool:
    return self.value_targets == "finished"

  def idle_keys(self) -> frozenset[str]:
    return frozenset([] if self.lambda_alpha is None else ["lambda_actor"])

  @property
  def _critic_decay(self) -> Any:
    if self.lambda_critic is not None:
      return self.lambda_critic
    return self.lambda_actor if self.lambda_alpha is None else 1.0

  def __call__(self, episodes: advantages.Episodes) -> Array:
    decay = jnp.full_like(episodes.lengths, self.lambda_actor)
    if self.lambda_alpha is not None:
      decay = adaptive_decay(episodes.lengths, self.lambda_alpha)
    values = gae(episodes, self.discount, decay)
    if self.whitened:
      return _whiten(values, episodes)
    return _keep(values, episodes)

  def targets(self, episodes: advantages.Episodes) -> Array:
    """float [N, T]: A_t + V(s_t) with the critic's λ, not whitened."""
    decay = jnp.full_like(episodes.lengths, self._critic_decay)
    values = gae(episodes, self.discount, decay)
    return _keep(values + episodes.values, episodes)

  def losses(self, terms: types.Terms, where: masked.Layout) -> Array:
    """½ max((V − R)², (V' − R)²), [B, T].

    V' is V clipped to ± value_clip around the value before the first update.
    """
    del where
    values, old = terms.values, terms.proximal_values
    errors = jnp.square(values - terms.returns)
    if self.value_clip:
      near = masked.clamp(
          values, old - self.value_clip, old + self.value_clip
      )
      errors = jnp.maximum(errors, jnp.square(near - terms.returns))
    return 0.5 * errors

  def describe(self) -> str:
    decay = f"λ = {self.lambda_actor:g}"
    if self.lambda_alpha is not None:
      decay = f"λ = max(0, 1 − 1/({self.lambda_alpha:g} l)), l response tokens"
    clip = f", V clipped to ±{self.value_clip:g}" if self.value_clip else ""
    return (
        f"A_t = rew_t + γ V(s_t+1) − V(s_t) + γ λ A_t+1, γ = {self.discount:g},"
        f" {decay}{', whitened' if self.whitened else ''}; V(s_T) = 0, where"
        " unfinished V(s_T−1); critic:"
        f" ½ (V − R)²{clip}, R = A + V with λ = {self._critic_decay:g},"
        f" {self.value_targets} responses"
    )


@dataclasses.dataclass(frozen=True)
class StaticValue(advantages.Advantage):
  """DVPO: the advantage is what a frozen critic Q(s, y) says of the token."""

  discount: float = parts.key(1.0, **_DISCOUNT)
  whitened: bool = parts.key(True, **_WHITENED)

  per_token = True
  critic = "action"

  def __call__(self, episodes: advantages.Episodes) -> Array:
    if self.whitened:
      return _whiten(episodes.values, episodes)
    return _keep(episodes.values, episodes)

  def targets(self, episodes: advantages.Episodes) -> Array:
    """float [N, T]: rew_t; what follows it is the live critic's to say."""
    return _keep(token_advantages.token_scores(episodes), episodes)

  def losses(self, terms: types.Terms, where: masked.Layout) -> Array:
    """½ (rew_t + γ sg[Q_{t+1}] − Q_t)², Q = 0 after the last token."""
    values = jax.lax.stop_gradient(masked.fill(terms.values, where.mask))
    later = _next(values, jnp.zeros_like(values), where.mask, where.starts)
    target = terms.returns + self.discount * later
    return 0.5 * jnp.square(terms.values - target)

  def describe(self) -> str:
    return (
        f"A_t = Q(s_t, y_t){', whitened' if self.whitened else ''}, of a critic"
        " that is frozen after its pretraining on ½ (rew_t + γ Q_t+1 − Q_t)²,"
        f" γ = {self.discount:g}"
    )


CRITIC_ADVANTAGES = {"gae": Gae, "static_value": StaticValue}


def weights(
    aggregation: Any, terms: types.Terms
) -> Array:
  """Per-token weights of the value loss over a whole mini-batch, [B, T].

  Args:
    aggregation: part of masked.AGGREGATIONS.
    terms: of the mini-batch; the mask holds the tokens to learn from.
  """
  layout = masked.layout(terms.mask, terms.segment_ids, terms.returns.dtype)
  return aggregation.weights(layout)


def apply(
    advantage: advantages.Advantage, terms: types.Terms, weighing: Array
) -> types.LossOutput:
  """The value loss of a micro-batch, and its metrics.

  Args:
    advantage: one of CRITIC_ADVANTAGES.
    terms: with live values, and proximal_values and returns.
    weighing: float [B, T], rows of `weights`.
  """
  mask = terms.mask
  where = masked.layout(mask, terms.segment_ids, terms.returns.dtype)
  names = ("values", "returns", "proximal_values")
  filled = {name: masked.fill(getattr(terms, name), mask) for name in names}
  terms = dataclasses.replace(terms, **filled)
  losses = masked.fill(advantage.losses(terms, where), mask)
  loss = jnp.sum(losses * weighing)
  values = jax.lax.stop_gradient(terms.values)
  metrics = {
      "critic/loss": types.Sum(jax.lax.stop_gradient(loss)),
      "critic/value": types.Mean.of(values, mask),
      "critic/error": types.Mean.of(
          jnp.abs(values - terms.returns), mask
      ),
  }
  return types.LossOutput(loss, metrics)
