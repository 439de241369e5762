"""Causal attention with grouped heads: packed rows, and one token on a cache.

Both take bfloat16 (or float32) queries, keys and values and keep scores,
softmax and sums in float32. Keys and values are never repeated over the
query heads that share them.
"""

import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import matmul

Array = types.Array

# Longest row whose whole [T, T] score matrix is kept; beyond it, memory grows
# linearly with T, in blocks of this many queries.
QUERY_BLOCK = 512
# Finite, so that a row without any allowed key gives a mean and not a NaN.
_MASKED = -1e30


def causal(
    queries: Array,
    keys: Array,
    values: Array,
    segment_ids: Array,
    dtype: jnp.dtype,
    plain: bool = False,
) -> Array:
  """Attends to itself and the earlier tokens of the same segment.

  Args:
    queries: float32 [B, T, N, H].
    keys: float32 [B, T, K, H]; head n reads key head n // (N / K).
    values: as keys.
    segment_ids: int32 [B, T]; the tokens of a segment lie in order.
    dtype: compute dtype, that the inputs of products are rounded to.
    plain: use the twin that is differentiable forward (jax.jvp).

  Returns:
    float32 [B, T, N, H]; on padding, anything finite.
  """
  rows, tokens, heads, head_dim = queries.shape
  groups = heads // keys.shape[2]
  blocks = -(-tokens // QUERY_BLOCK)
  block = -(-tokens // blocks)
  queries = jnp.reshape(queries, (rows, tokens, -1, groups, head_dim))
  padding = blocks * block - tokens
  queries = jnp.pad(queries, ((0, 0), (0, padding)) + ((0, 0),) * 3)
  attend = _causal_forward if plain else _causal
  outputs = attend(queries, keys, values, segment_ids, dtype, block)[0]
  return jnp.reshape(
      outputs[:, :tokens], (rows, tokens, heads, head_dim)
  )


def _scores(queries, keys, segment_ids, start):
  """Returns masked, scaled scores [B, K, G, block, T] of one query block."""
  scores = matmul.einsum("btkgh,bskh->bkgts", queries, keys)
  scores *= queries.shape[-1] ** -0.5
  # Queries added to fill the last block read segment T - 1 and are dropped.
  block, tokens = queries.shape[1], keys.shape[1]
  index = start + jnp.arange(block)
  query_segments = jnp.take(segment_ids, index, axis=1, mode="clip")
  allowed = index[:, None] >= jnp.arange(tokens)[None, :]
  allowed &= query_segments[:, :, None] == segment_ids[:, None, :]
  return jnp.where(allowed[:, None, None], scores, _MASKED)


def _causal_forward(queries, keys, values, segment_ids, dtype, block):
  """Returns outputs [B, T', K, G, H] and log-sums [B, K, G, T'], float32."""
  queries, keys, values = (x.astype(dtype) for x in (queries, keys, values))

  def attend(start):
    part = jax.lax.dynamic_slice_in_dim(queries, start, block, axis=1)
    scores = _scores(part, keys, segment_ids, start)
    # The maximum cancels from the softmax; so it needs no derivative.
    peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - peak)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    outputs = matmul.einsum(
        "bkgts,bskh->btkgh", (weights / total).astype(dtype), values
    )
    return outputs, (peak + jnp.log(total))[..., 0]

  if queries.shape[1] == block:
    return attend(0)
  starts = jnp.arange(0, queries.shape[1], block)
  outputs, log_sums = jax.lax.map(attend, starts)
  return _join(outputs, 1), _join(log_sums, 3)


def _join(blocks, axis):
  """Joins [blocks, …] into one array, block after block on `axis`."""
  moved = jnp.moveaxis(blocks, 0, axis)
  shape = list(moved.shape)
  shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
  return jnp.reshape(moved, shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _causal(queries, keys, values, segment_ids, dtype, block):
  return _causal_forward(queries, keys, values, segment_ids, dtype, block)


def _causal_fwd(queries, keys, values, segment_ids, dtype, block):
  rounded = tuple(x.astype(dtype) for x in (queries, keys, values))
  results = _causal_forward(*rounded, segment_ids, dtype, block)
  bits = tuple(map(matmul.to_bits, rounded))
  return results, (bits, segment_ids, results)


def _causal_bwd(dtype, block, residuals, cotangents):
  """Recomputes the scores block by block (arXiv 2205.14135, algorithm 4)."""
  bits, segment_ids, (outputs, log_sums) = residuals
  queries, keys, values = map(matmul.from_bits, bits)
  cotangent = cotangents[0]
  scale = queries.shape[-1] ** -0.5

  def attend(sums, start):
    def part(array, axis):
      return jax.lax.dynamic_slice_in_dim(array, start, block, axis)

    query, given = part(queries, 1), part(cotangent, 1)
    scores = _scores(query, keys, segment_ids, start)
    weights = jnp.exp(scores - part(log_sums, 3)[..., None])
    inner = jnp.einsum("btkgh,btkgh->bkgt", given, part(outputs, 1))
    given = given.astype(dtype)
    to_weights = matmul.einsum("btkgh,bskh->bkgts", given, values)
    to_scores = weights * (to_weights - inner[..., None]) * scale
    to_scores = to_scores.astype(dtype)
    weights = weights.astype(dtype)
    to_keys, to_values = sums
    to_keys += matmul.einsum("bkgts,btkgh->bskh", to_scores, query)
    to_values += matmul.einsum("bkgts,btkgh->bskh", weights, given)
    to_queries = matmul.einsum("bkgts,bskh->btkgh", to_scores, keys)
    return (to_keys, to_values), to_queries

  zeros = jnp.zeros(keys.shape, matmul.sum_dtype(dtype))
  if queries.shape[1] == block:
    sums, to_queries = attend((zeros, zeros), 0)
  else:
    starts = jnp.arange(0, queries.shape[1], block)
    sums, to_queries = jax.lax.scan(attend, (zeros, zeros), starts)
    to_queries = _join(to_queries, 1)
  return to_queries, *sums, None


_causal.defvjp(_causal_fwd, _causal_bwd)


def cached(
    queries: Array,
    key: Array,
    value: Array,
    keys: Array,
    values: Array,
    positions: Array,
) -> Array:
  """Attends to what the cache holds before `positions`, and to the new token.

  Args:
    queries: compute dtype [S, N, H] of one new token per slot.
    key: compute dtype [S, K, H], of the new token.
    value: as key.
    keys: compute dtype [S, K, C, H], the cache without the new token.
    values: as keys.
    positions: int32 [S], index of the new token; the entries of the cache
      before it are read.

  Returns:
    float32 [S, N, H].
  """
  slots, heads, head_dim = queries.shape
  queries = jnp.reshape(queries, (slots, key.shape[1], -1, head_dim))
  scale = head_dim**-0.5
  scores = matmul.einsum("skgh,skch->skgc", queries, keys) * scale
  earlier = jnp.arange(keys.shape[2])[None, :] < positions[:, None]
  scores = jnp.where(earlier[:, None, None], scores, _MASKED)
  own = matmul.einsum("skgh,skh->skg", queries, key)[..., None] * scale
  peak = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), own)
  weights, own = jnp.exp(scores - peak), jnp.exp(own - peak)
  total = jnp.sum(weights, axis=-1, keepdims=True) + own
  weights, own = (x / total for x in (weights, own))
  outputs = matmul.einsum(
      "skgc,skch->skgh", weights.astype(values.dtype), values
  )
  own = own.astype(value.dtype).astype(outputs.dtype)
  outputs += own * value[:, :, None].astype(outputs.dtype)
  return jnp.reshape(outputs, (slots, heads, head_dim))
