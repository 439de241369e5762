"""Advantages that whiten over tokens or subtract a greedy baseline."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import advantages
from jaxrl_llm.losses import kernels
from jaxrl_llm.losses import parts

Array = jax.Array

_EPSILON = 1e-8


def whiten(values: Array, counts: Array) -> Array:
  """(x − mean) / sqrt(variance + 1e-8) over tokens, ddof 1.

  Args:
    values: float [...], finite.
    counts: float [...], tokens that each value stands for; 0 leaves it out.

  Returns:
    float [...]; 0 where the count is 0, and everywhere below two tokens.
  """
  count = jnp.sum(counts)
  mean = jnp.sum(values * counts) / jnp.maximum(count, 1.0)
  centred = values - mean
  variance = jnp.sum(jnp.square(centred) * counts)
  variance /= jnp.maximum(count - 1.0, 1.0)
  whitened = centred * jax.lax.rsqrt(variance + _EPSILON)
  return jnp.where((counts > 0) & (count > 1), whitened, 0.0)


def token_scores(episodes: advantages.Episodes) -> Array:
  """float [N, T]: token rewards, and the score at the last token.

  A response that is not finished has no score.
  """
  mask = episodes.mask
  if mask is None:
    raise ValueError(
        "advantages: a discounted or token-rewarded return needs the response "
        "mask [N, T]; pass mask=."
    )
  scored = episodes.valid
  if episodes.unfinished is not None:
    scored &= ~episodes.unfinished
  scores = jnp.where(scored, episodes.scores, 0.0)
  positions = jnp.cumsum(mask, axis=1)
  last = mask & (positions == positions[:, -1:])
  rewards = jnp.where(last, scores[:, None], 0.0)
  if episodes.token_rewards is not None:
    rewards += jnp.where(mask, episodes.token_rewards, 0.0)
  return rewards


def first_tokens(mask: Array) -> Array:
  """bool [N, T]: the first token of each row, where its sequence starts."""
  return jnp.zeros_like(mask).at[:, 0].set(True)


def returns(episodes: advantages.Episodes, discount: Array) -> Array:
  """float [N, T]: discounted reward to go, the score at the last token."""
  rewards = token_scores(episodes)
  kernel = kernels.form(
      kernels.discounted_returns, kernels.discounted_returns_parallel
  )
  return jax.vmap(kernel, in_axes=(0, 0, 0, None))(
      rewards, episodes.mask, first_tokens(episodes.mask), discount
  )


@dataclasses.dataclass(frozen=True)
class Whitened(advantages.Advantage):
  """REINFORCE++: reward to go, whitened over all response tokens."""

  discount: float = parts.key(
      1.0, "γ per token of the reward to go", at_least=0.0, at_most=1.0
  )

  @property
  def per_token(self) -> bool:
    return self.discount != 1.0

  def __call__(self, episodes: advantages.Episodes) -> Array:
    if episodes.mask is None and not self.per_token:
      counts = jnp.where(episodes.valid, episodes.lengths, 0.0)
      return whiten(episodes.totals(), counts)
    values = returns(episodes, self.discount)
    valid = episodes.mask & episodes.valid[:, None]
    return whiten(jnp.where(valid, values, 0.0), valid.astype(values.dtype))

  def describe(self) -> str:
    return (
        f"A_t = G_t whitened over all response tokens, G_t = rew_t + "
        f"{self.discount:g} G_(t+1)"
    )


@dataclasses.dataclass(frozen=True)
class GroupWhitened(advantages.Advantage):
  """REINFORCE++ with a group baseline: R − mean, whitened over tokens."""

  singleton: str = parts.key("zero", **advantages.SINGLETON)

  group_baseline = True

  def __call__(self, episodes: advantages.Episodes) -> Array:
    group = advantages.group_statistics(episodes)
    counted = episodes.valid
    centred = group.centred
    if self.singleton == "verl":
      centred = jnp.where(group.counts > 1, centred, episodes.totals())
    else:
      counted &= group.counts > 1
    return whiten(centred, jnp.where(counted, episodes.lengths, 0.0))

  def describe(self) -> str:
    return (
        "A = R − group mean, whitened over all response tokens; group of one: "
        f"{self.singleton}"
    )


@dataclasses.dataclass(frozen=True)
class GreedyBaseline(advantages.Advantage):
  """ReMax: reward to go minus the reward of the prompt's greedy response."""

  difference_clip: float | None = parts.key(
      None,
      "remax: R − greedy R is cut to ± this and a token adds its own reward"
      " only; unset: reward to go, uncut",
      above=0.0,
  )

  greedy_baseline = True

  def __call__(self, episodes: advantages.Episodes) -> Array:
    greedy = episodes.greedy_rewards
    if greedy is None:
      raise ValueError(
          "advantages: greedy_baseline needs greedy_rewards [N], one greedy "
          "response per prompt."
      )
    valid = episodes.valid & jnp.isfinite(greedy)
    baseline = jnp.where(valid, greedy, 0.0)
    scores = jnp.where(valid, episodes.scores, 0.0)
    limit = self.difference_clip
    if episodes.token_rewards is None:
      gaps = scores - baseline
      gaps = gaps if limit is None else jnp.clip(gaps, -limit, limit)
      return jnp.where(valid, gaps, 0.0)
    if limit is None:
      gaps = returns(episodes, 1.0) - baseline[:, None]
    else:
      gaps = jnp.clip(scores - baseline, -limit, limit)[:, None]
      gaps = gaps + episodes.token_rewards
    return jnp.where(episodes.mask & valid[:, None], gaps, 0.0)

  def describe(self) -> str:
    if self.difference_clip is None:
      return "A_t = G_t − R of the prompt's greedy response"
    limit = self.difference_clip
    return (
        f"A_t = clip(R − R of the prompt's greedy response, −{limit:g}, "
        f"{limit:g}) + own token reward"
    )


TOKEN_ADVANTAGES = {
    "whitened": Whitened,
    "group_whitened": GroupWhitened,
    "greedy_baseline": GreedyBaseline,
}
