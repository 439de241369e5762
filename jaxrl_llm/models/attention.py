"""Causal attention with grouped heads: packed rows, and one token on a cache.

Both take bfloat16 (or float32) queries, keys and values and keep scores,
softmax and sums in float32. Keys and values are never repeated over the
query heads that share them.
"""

import functools

import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import cache
from jaxrl_llm.models import matmul

Array = types.Array

# Longest row whose whole [T, T] score matrix is kept; beyond it, memory grows
# linearly with T, in blocks of this many queries.
QUERY_BLOCK = 512
# Name of what the backward pass of `causal` reads, for jax.checkpoint.
KEPT = "attention"
# Finite, so that a row without any allowed key gives a mean and not a NaN.
_MASKED = -1e30


def causal(
    queries: Array,
    keys: Array,
    values: Array,
    segment_ids: Array,
    parent_ids: Array,
    dtype: jnp.dtype,
    plain: bool = False,
) -> Array:
  """Attends to the earlier tokens of the own segment and of its parent.

  Responses to one prompt share its keys and values so: each is a segment whose
  parent is the prompt.

  Args:
    queries: float32 [B, T, N, H].
    keys: float32 [B, T, K, H]; head n reads key head n // (N / K).
    values: as keys.
    segment_ids: int32 [B, T]; the tokens of a segment lie in order.
    parent_ids: int32 [B, T], the segment that a token's own one continues,
      which lies before it in the row; the own one where there is none.
    dtype: compute dtype, that the inputs of products are rounded to.
    plain: use the twin that is differentiable forward (jax.jvp).

  Returns:
    float32 [B, T, N, H]; on padding, anything finite.
  """
  rows, tokens, heads, head_dim = queries.shape
  blocks = -(-tokens // QUERY_BLOCK)
  block = -(-tokens // blocks)
  padding = ((0, 0), (0, blocks * block - tokens), (0, 0), (0, 0))
  grouped = (rows, blocks * block, keys.shape[2], -1, head_dim)
  queries = jnp.reshape(jnp.pad(queries, padding), grouped)
  attend = _causal_forward if plain else _causal
  outputs, _ = attend(
      jnp.transpose(queries, (0, 2, 3, 1, 4)),
      jnp.swapaxes(keys, 1, 2),
      jnp.swapaxes(values, 1, 2),
      (segment_ids, parent_ids),
      dtype,
      block,
  )
  outputs = jnp.transpose(outputs[:, :, :, :tokens], (0, 3, 1, 2, 4))
  return jnp.reshape(outputs, (rows, tokens, heads, head_dim))


# From here on, queries are [B, K, G, T', H] and keys [B, K, T, H]; in a product
# the queries of a block and the heads of a group are one axis, G · block.


def _merge(part):
  """Makes one axis of the group and the tokens of a block."""
  return jnp.reshape(part, (*part.shape[:2], -1, *part.shape[4:]))


def _scores(queries, keys, ids, start, block):
  """Returns masked, scaled scores [B, K, G · block, T] of one query block."""
  # Tied to the queries, or the scan over layers makes the masks of all blocks
  # beforehand, [T, T] for every head.
  queries, ids, start = jax.lax.optimization_barrier((queries, ids, start))
  scores = matmul.einsum("bkqh,bksh->bkqs", queries, keys)
  scores *= queries.shape[-1] ** -0.5
  # Queries added to fill the last block read segment T - 1 and are dropped.
  tokens = keys.shape[2]
  index = start + jnp.arange(block)
  own, parent = (
      jnp.take(x, index, axis=1, mode="clip")[:, :, None] for x in ids
  )
  segments = ids[0][:, None, :]
  allowed = index[:, None] >= jnp.arange(tokens)[None, :]
  allowed &= (own == segments) | (parent == segments)
  split = jnp.reshape(scores, (*scores.shape[:2], -1, block, tokens))
  split = jnp.where(allowed[:, None, None], split, _MASKED)
  return jnp.reshape(split, scores.shape)


def _causal_forward(queries, keys, values, ids, dtype, block):
  """Returns outputs like queries and log-sums [B, K, G, T'], float32."""
  # Nothing here may become bits: they have no derivative.
  keys, values = (matmul.row_major(x.astype(dtype)) for x in (keys, values))
  shape = (*queries.shape[:3], block)

  def attend(start):
    part = jax.lax.dynamic_slice_in_dim(queries, start, block, axis=3)
    part = _merge(part).astype(dtype)
    scores = _scores(part, keys, ids, start, block)
    # The maximum cancels from the softmax; so it needs no derivative.
    peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - peak)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    outputs = matmul.einsum(
        "bkqs,bksh->bkqh", (weights / total).astype(dtype), values
    )
    log_sums = (peak + jnp.log(total))[..., 0]
    return (
        jnp.reshape(outputs, (*shape, -1)), jnp.reshape(log_sums, shape)
    )

  return _over_blocks(attend, queries.shape[3], block)


def _over_blocks(attend, tokens, block):
  """Joins what `attend` gives for each block along the axis of T'."""
  if tokens == block:
    return attend(0)

  def join(parts):
    parts = jnp.moveaxis(parts, 0, 3)
    return jnp.reshape(parts, (*parts.shape[:3], tokens, *parts.shape[5:]))

  starts = jnp.arange(0, tokens, block)
  return jax.tree.map(join, jax.lax.map(attend, starts))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _causal(queries, keys, values, ids, dtype, block):
  return _causal_forward(queries, keys, values, ids, dtype, block)


def _causal_fwd(queries, keys, values, ids, dtype, block):
  results = _causal_forward(queries, keys, values, ids, dtype, block)
  bits = [matmul.to_bits(x.astype(dtype)) for x in (queries, keys, values)]
  bits, results = ad_checkpoint.checkpoint_name((bits, results), KEPT)
  return results, (bits, ids, results)


def _causal_bwd(dtype, block, residuals, cotangents):
  """Recomputes the scores block by block (arXiv 2205.14135, algorithm 4)."""
  (queries, *keys_values), ids, results = residuals
  keys, values = (
      matmul.row_major(matmul.from_bits(x)) for x in keys_values
  )
  scale = keys.shape[-1] ** -0.5

  def attend(sums, start):
    query, given, outputs, log_sums = (
        _merge(jax.lax.dynamic_slice_in_dim(x, start, block, axis=3))
        for x in (queries, cotangents[0], *results)
    )
    query = matmul.from_bits(query)
    scores = _scores(query, keys, ids, start, block)
    weights = jnp.exp(scores - log_sums[..., None])
    inner = jnp.sum(given * outputs, axis=-1, keepdims=True)
    given = given.astype(dtype)
    to_weights = matmul.einsum("bkqh,bksh->bkqs", given, values)
    to_scores = (weights * (to_weights - inner) * scale).astype(dtype)
    weights = weights.astype(dtype)
    to_keys, to_values = sums
    to_keys += _over_queries(to_scores, query)
    to_values += _over_queries(weights, given)
    to_queries = matmul.einsum("bkqs,bksh->bkqh", to_scores, keys)
    shape = (*queries.shape[:3], block, -1)
    return (to_keys, to_values), jnp.reshape(to_queries, shape)

  zeros = jnp.zeros(keys.shape, matmul.sum_dtype(dtype))
  if queries.shape[3] == block:
    sums, to_queries = attend((zeros, zeros), 0)
  else:
    starts = jnp.arange(0, queries.shape[3], block)
    sums, to_queries = jax.lax.scan(attend, (zeros, zeros), starts)
    to_queries = jnp.moveaxis(to_queries, 0, 3)
    to_queries = jnp.reshape(to_queries, queries.shape)
  return to_queries, *sums, None


def _over_queries(weights, rows):
  """Sums weights[…, q, s] · rows[…, q, h] over the queries."""
  turned = matmul.row_major(jnp.swapaxes(weights, -1, -2))
  return matmul.einsum("bksq,bkqh->bksh", turned, rows)


_causal.defvjp(_causal_fwd, _causal_bwd)


def cached(
    queries: Array,
    keys: Array,
    values: Array,
    lengths: Array,
    recent_keys: Array,
    recent_values: Array,
    index: Array,
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

  Returns:
    float32 [S, N, H]; more capacity changes no bit of it.
  """
  slots, heads, head_dim = queries.shape
  queries = jnp.reshape(queries, (slots, keys.shape[1], -1, head_dim))
  scale = head_dim**-0.5
  scores = matmul.einsum("skgh,skhc->skgc", queries, keys) * scale
  held = jnp.arange(keys.shape[3])[None, :] < lengths[:, None]
  scores = jnp.where(held[:, None, None], scores, _MASKED)
  later = matmul.einsum("skgh,skrh->skgr", queries, recent_keys) * scale
  later = jnp.where(jnp.arange(later.shape[3]) <= index, later, _MASKED)
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
