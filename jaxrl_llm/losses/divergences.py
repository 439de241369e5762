"""Per-token divergences D(anchor ‖ live), always detached.

Binary forms see only the sampled token against the rest; top-K forms see the
anchor's K most likely ids, the sampled token and one bucket for the rest.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import tokens as tokens_lib

Array = jax.Array

# Least mass of the rest bucket: keeps logs finite when p rounds to 1.
_REST_FLOOR = 1e-8


def total_variation(anchor: Array, live: Array) -> Array:
  """½ Σ_k |μ_k − π_k| from log-probs [..., K], −inf allowed."""
  return 0.5 * jnp.sum(jnp.abs(jnp.exp(anchor) - jnp.exp(live)), axis=-1)


def kullback_leibler(anchor: Array, live: Array) -> Array:
  """Σ_k μ_k log(μ_k / π_k), nats, from log-probs [..., K]; 0 where μ_k = 0."""
  present = anchor > -jnp.inf
  gaps = jnp.where(present, anchor, 0.0) - jnp.where(present, live, 0.0)
  return jnp.sum(jnp.where(present, jnp.exp(anchor) * gaps, 0.0), axis=-1)


def _binary(logprobs: Array) -> Array:
  """Log-probs of (sampled token, anything else), [B, T, 2]."""
  rest = jnp.maximum(-jnp.expm1(logprobs), _REST_FLOOR)
  return jnp.stack([logprobs, jnp.log(rest)], axis=-1)


def _top(logprobs: Array, sampled: Array, inside: Array, add: str) -> Array:
  """Log-probs of (top-K, the sampled token where outside, the rest)."""
  extra = jnp.where(inside, -jnp.inf, sampled)[..., None]
  if add == "replace":
    last = jnp.where(inside, logprobs[..., -1], -jnp.inf)[..., None]
    logprobs = jnp.concatenate([logprobs[..., :-1], last], axis=-1)
  known = jnp.concatenate([logprobs, extra], axis=-1)
  rest = 1.0 - jnp.sum(jnp.exp(known), axis=-1, keepdims=True)
  rest = jnp.log(jnp.maximum(rest, _REST_FLOOR))
  return jnp.concatenate([known, rest], axis=-1)


@dataclasses.dataclass(frozen=True)
class Divergence(parts.Part):
  """The keys that say which divergence a trust region tests."""

  divergence: str = parts.key(
      "binary_tv",
      "D(anchor || live) that the region tests: binary_tv, binary_kl,"
      " topk_tv or topk_kl",
      choices=("binary_tv", "binary_kl", "topk_tv", "topk_kl"),
  )
  divergence_topk: int = parts.key(
      20, "K of topk_tv and topk_kl: top ids of the anchor policy", at_least=1
  )
  topk_add: str = parts.key(
      "union",
      "sampled token outside the top-K: union adds it, replace drops the"
      " last of the top-K for it",
      choices=("union", "replace"),
  )

  @property
  def topk(self) -> int:
    """Top-K entries of the anchor that must be stored."""
    return self.divergence_topk if self.divergence.startswith("topk") else 0

  @property
  def kind(self) -> str:
    """tv or kl."""
    return self.divergence.split("_")[1]

  def idle_keys(self) -> frozenset[str]:
    if self.topk:
      return frozenset()
    return frozenset(["divergence_topk", "topk_add"])

  def divergences(self, tokens: tokens_lib.Tokens) -> Array:
    """float [B, T]: D_t ≥ 0, 0 where masked."""
    anchor, live = self._distributions(tokens)
    measure = total_variation if self.kind == "tv" else kullback_leibler
    return masked.fill(measure(anchor, live), tokens.layout.mask)

  def _distributions(self, tokens: tokens_lib.Tokens) -> tuple[Array, Array]:
    anchor, live = tokens.anchor_logprobs, tokens.detached_logprobs
    if not self.topk:
      return _binary(anchor), _binary(live)
    terms = tokens.terms
    ids = terms.topk_ids[..., : self.topk]
    inside = jnp.any(ids == terms.tokens[..., None], axis=-1)
    top_anchor = terms.topk_anchor_logprobs[..., : self.topk]
    top_live = jax.lax.stop_gradient(terms.topk_logprobs[..., : self.topk])
    return (
        _top(top_anchor, anchor, inside, self.topk_add),
        _top(top_live, live, inside, self.topk_add),
    )

  def describe_divergence(self, anchor: str) -> str:
    """The divergence in words."""
    total = self.kind == "tv"
    measure = "½ Σ|{0} − π|" if total else "Σ {0} log({0}/π)"
    over = "sampled token against the rest"
    if self.topk:
      over = (
          f"top {self.topk} of {anchor}, the sampled token ({self.topk_add})"
          " and the rest"
      )
    return f"D_t = {measure.format(anchor)} over {over}; detached"
