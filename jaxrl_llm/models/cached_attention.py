"""Attention of one new token per sequence to a cache, with grouped heads.

Inputs are bfloat16 (or float32); scores, softmax and sums stay in float32.
"""

import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import cache
from jaxrl_llm.models import matmul
from jaxrl_llm.models import scores as scores_lib

Array = types.Array


def attend(
    queries: Array,
    keys: Array,
    values: Array,
    lengths: Array,
    recent_keys: Array,
    recent_values: Array,
    index: Array,
    *,
    rule: scores_lib.Rule = scores_lib.Rule(),
    window: Array | None = None,
) -> Array:
  """Attends to what the cache holds, and to the tokens that came after.

  Args:
    queries: compute dtype [S, N, H] of one new token per slot.
    keys: compute dtype [S, K, H, C], the cache.
    values: compute dtype [S, K, C, H], likewise; C is a multiple of
      cache.BLOCK.
    lengths: int32 [S], entries of the cache that are read.
    recent_keys: compute dtype [S, K, R, H], of later tokens.
    recent_values: as recent_keys.
    index: int32, the last of them that is read, the new token's own.
    rule: how products become scores.
    window: int32, how many tokens up to the new one are read; None: all.

  Returns:
    float32 [S, N, H]; more capacity changes no bit of it.
  """
  slots, heads, head_dim = queries.shape
  queries = jnp.reshape(queries, (slots, keys.shape[1], -1, head_dim))
  scores = matmul.einsum("skgh,skhc->skgc", queries, keys)
  entries = jnp.arange(keys.shape[3])[None, :]
  held = entries < lengths[:, None]
  later = matmul.einsum("skgh,skrh->skgr", queries, recent_keys)
  among = jnp.arange(later.shape[3])
  made = among <= index
  if window is not None:
    held &= lengths[:, None] + index - entries < window
    made &= index - among < window
  scores, later = (rule.scores(x, head_dim) for x in (scores, later))
  scores = jnp.where(held[:, None, None], scores, scores_lib.MASKED)
  later = jnp.where(made, later, scores_lib.MASKED)
  peak = jnp.maximum(
      *(jnp.max(x, axis=-1, keepdims=True) for x in (scores, later))
  )
  weights, later = jnp.exp(scores - peak), jnp.exp(later - peak)
  total = jnp.sum(later, axis=-1, keepdims=True)
  for block in jnp.split(weights, weights.shape[-1] // cache.BLOCK, axis=-1):
    total += jnp.sum(block, axis=-1, keepdims=True)
  weights, later = ((x / total).astype(values.dtype) for x in (weights, later))
  outputs = matmul.einsum("skgc,skch->skgh", weights, values)
  outputs += matmul.einsum("skgr,skrh->skgh", later, recent_values)
  return jnp.reshape(outputs, (slots, heads, head_dim))
