"""Causal attention with grouped heads over packed rows.

Products take bfloat16 (or float32) inputs; scores, softmax and sums stay in
float32. Keys and values are never repeated over the query heads that share
them. On TPUs the kernels of attention_tpu.py do it where they pay.
cached_attention.py has the same for one token on a cache.
"""

import functools

import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import attention_tpu
from jaxrl_llm.models import matmul
from jaxrl_llm.models import scores as scores_lib

Array = types.Array

# Longest row whose whole [T, T] score matrix is held; of a longer one, a matrix
# of this many queries and keys, so memory grows linearly with T.
BLOCK = 256
# Name of what the backward pass of `causal` reads, for jax.checkpoint.
KEPT = "attention"


def causal(
    queries: Array,
    keys: Array,
    values: Array,
    segment_ids: Array,
    parent_ids: Array,
    dtype: jnp.dtype,
    plain: bool = False,
    *,
    rule: scores_lib.Rule = scores_lib.Rule(),
    positions: Array | None = None,
    window: Array | None = None,
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
    rule: how products become scores.
    positions: int32 [B, T], index within the sequence; read with a window.
    window: int32, how many tokens up to the own one are read; None: all.

  Returns:
    float32 [B, T, N, H]; on padding, anything finite.
  """
  rows, tokens, heads, head_dim = queries.shape
  attend, block = _form(queries, keys, plain)
  # What is added is padding, as a row's own.
  fill = lambda x: jnp.pad(
      x, ((0, 0), (0, -tokens % block)) + ((0, 0),) * (x.ndim - 2)
  )
  queries, keys, values = map(fill, (queries, keys, values))
  grouped = (*keys.shape[:3], -1, head_dim)
  queries = jnp.reshape(queries, grouped)
  outputs, _ = attend(
      jnp.transpose(queries, (0, 2, 3, 1, 4)),
      jnp.swapaxes(keys, 1, 2),
      jnp.swapaxes(values, 1, 2),
      (
          (fill(segment_ids), fill(parent_ids)),
          None if window is None else (fill(positions), window),
      ),
      dtype,
      block,
      rule,
  )
  outputs = jnp.transpose(outputs[:, :, :, :tokens], (0, 3, 1, 2, 4))
  return jnp.reshape(outputs, (rows, tokens, heads, head_dim))


def _form(queries, keys, plain):
  """Returns which of the forms below attends, and the tokens of its blocks."""
  tokens, heads = queries.shape[1:3]
  if not plain and attention_tpu.pays(queries, keys):
    block = attention_tpu.block_of(tokens, heads // keys.shape[2])
    return functools.partial(_causal, "kernels"), block
  blocks = -(-tokens // BLOCK)
  form = _causal_forward if plain else functools.partial(_causal, "pairs")
  return form, -(-tokens // blocks)


# From here on, queries are [B, K, G, T', H] and keys [B, K, T', H]; in a
# product the queries of a block and the heads of a group are one axis,
# G · block. Of several blocks, each pair of queries and of keys that are not
# all later is a step of a scan, so half of [T', T'] is computed and a block of
# it held.


def _merge(part):
  """Makes one axis of the group and the tokens of a block."""
  return jnp.reshape(part, (*part.shape[:2], -1, *part.shape[4:]))


def _over_pairs(add, sums, blocks):
  """Applies `add`(sums, pair) to each pair of blocks, (queries, keys)."""
  pairs = [(query, key) for query in range(blocks) for key in range(query + 1)]
  step = lambda sums, pair: (add(sums, pair), None)
  return jax.lax.scan(step, sums, jnp.asarray(pairs, jnp.int32))[0]


def _of_block(array, number, block, axis):
  return jax.lax.dynamic_slice_in_dim(array, number * block, block, axis)


def _put_block(array, part, number, block, axis):
  shape = (*array.shape[:axis], block, *array.shape[axis + 1 :])
  return jax.lax.dynamic_update_slice_in_dim(
      array, jnp.reshape(part, shape), number * block, axis
  )


def _add_block(array, part, number, block, axis):
  held = _of_block(array, number, block, axis)
  return _put_block(
      array, held + jnp.reshape(part, held.shape), number, block, axis
  )


def _scores(queries, keys, reach, pair, block, rule):
  """Returns masked scores [B, K, G · block, block] of a pair."""
  # Tied to the queries, or the scan over layers makes the masks of all blocks
  # beforehand, [T, T] for every head.
  queries, reach, pair = jax.lax.optimization_barrier((queries, reach, pair))
  scores = matmul.einsum("bkqh,bksh->bkqs", queries, keys)
  scores = rule.scores(scores, queries.shape[-1])
  place = jnp.arange(block)
  later = pair[0] * block + place[:, None] < pair[1] * block + place
  of_queries = lambda x: _of_block(x, pair[0], block, 1)[:, :, None]
  of_keys = lambda x: _of_block(x, pair[1], block, 1)[:, None, :]
  ids, near = reach
  own, parent = map(of_queries, ids)
  segments = of_keys(ids[0])
  allowed = ((own == segments) | (parent == segments)) & ~later
  if near is not None:
    # By position: between a response and its prompt others may lie.
    positions, window = near
    allowed &= of_queries(positions) - of_keys(positions) < window
  split = jnp.reshape(scores, (*scores.shape[:2], -1, block, block))
  split = jnp.where(allowed[:, None, None], split, scores_lib.MASKED)
  return jnp.reshape(split, scores.shape)


def _causal_forward(queries, keys, values, reach, dtype, block, rule):
  """Returns outputs like queries and log-sums [B, K, G, T'], float32."""
  # Nothing here may become bits: they have no derivative.
  keys, values = (matmul.row_major(x.astype(dtype)) for x in (keys, values))
  blocks = queries.shape[3] // block
  if blocks > 1:
    return _forward_pairs(queries, keys, values, reach, dtype, block, rule)
  query = _merge(queries).astype(dtype)
  scores = _scores(query, keys, reach, (0, 0), block, rule)
  # The maximum cancels from the softmax; so it needs no derivative.
  peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
  weights = jnp.exp(scores - peak)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  outputs = matmul.einsum(
      "bkqs,bksh->bkqh", (weights / total).astype(dtype), values
  )
  log_sums = (peak + jnp.log(total))[..., 0]
  return (
      jnp.reshape(outputs, queries.shape),
      jnp.reshape(log_sums, queries.shape[:-1]),
  )


def _forward_pairs(queries, keys, values, reach, dtype, block, rule):
  """Sums over pairs of blocks (arXiv 2205.14135, algorithm 1)."""

  def add(sums, pair):
    query, peak, total, outputs = (
        _merge(_of_block(x, pair[0], block, 3)) for x in (queries, *sums)
    )
    key, value = (_of_block(x, pair[1], block, 2) for x in (keys, values))
    scores = _scores(query.astype(dtype), key, reach, pair, block, rule)
    # The maxima cancel from the softmax; so they need no derivative.
    largest = jnp.max(scores, axis=-1)
    risen = jax.lax.stop_gradient(jnp.maximum(peak, largest))
    shrunk = jnp.exp(peak - risen)
    weights = jnp.exp(scores - risen[..., None])
    total = total * shrunk + jnp.sum(weights, axis=-1)
    outputs *= shrunk[..., None]
    outputs += matmul.einsum("bkqs,bksh->bkqh", weights.astype(dtype), value)
    return tuple(
        _put_block(whole, part, pair[0], block, 3)
        for whole, part in zip(sums, (risen, total, outputs), strict=True)
    )

  zeros = jnp.zeros(queries.shape, matmul.sum_dtype(dtype))
  peaks = jnp.full_like(zeros[..., 0], scores_lib.MASKED)
  start = (peaks, jnp.zeros_like(peaks), zeros)
  blocks = queries.shape[3] // block
  peaks, totals, outputs = _over_pairs(add, start, blocks)
  return outputs / totals[..., None], peaks + jnp.log(totals)


def _by_form(form, queries, keys, values, reach, dtype, block, rule):
  """Does what `_causal_forward` does, by pairs or by kernels."""
  if form == "kernels":
    rounded = (x.astype(dtype) for x in (queries, keys, values))
    return attention_tpu.forward(*rounded, reach, block, rule)
  return _causal_forward(queries, keys, values, reach, dtype, block, rule)


_causal = jax.custom_vjp(_by_form, nondiff_argnums=(0, 5, 6, 7))


def _causal_fwd(form, queries, keys, values, reach, dtype, block, rule):
  results = _by_form(form, queries, keys, values, reach, dtype, block, rule)
  bits = [matmul.to_bits(x.astype(dtype)) for x in (queries, keys, values)]
  bits, results = ad_checkpoint.checkpoint_name((bits, results), KEPT)
  return results, (bits, reach, results)


def _causal_bwd(form, dtype, block, rule, residuals, cotangents):
  """Recomputes the scores pair by pair (arXiv 2205.14135, algorithm 4)."""
  (queries, *keys_values), reach, results = residuals
  inner = jnp.sum(cotangents[0] * results[0], axis=-1)
  if form == "kernels":
    rounded = map(matmul.from_bits, (queries, *keys_values))
    given = cotangents[0].astype(dtype)
    return *attention_tpu.backward(
        *rounded, given, results[1], inner, reach, block, rule
    ), None
  keys, values = (
      matmul.row_major(matmul.from_bits(x)) for x in keys_values
  )

  def of_pair(pair):
    """Returns what queries, keys and values of a pair of blocks receive."""
    query, given, log_sums, shift = (
        _merge(_of_block(x, pair[0], block, 3))
        for x in (queries, cotangents[0], results[1], inner)
    )
    key, value = (_of_block(x, pair[1], block, 2) for x in (keys, values))
    query = matmul.from_bits(query)
    scores = _scores(query, key, reach, pair, block, rule)
    weights = jnp.exp(scores - log_sums[..., None])
    given = given.astype(dtype)
    to_weights = matmul.einsum("bkqh,bksh->bkqs", given, value)
    to_scores = weights * (to_weights - shift[..., None])
    to_scores *= rule.slopes(scores, keys.shape[-1])
    to_scores = to_scores.astype(dtype)
    return (
        matmul.einsum("bkqs,bksh->bkqh", to_scores, key),
        _over_queries(to_scores, query),
        _over_queries(weights.astype(dtype), given),
    )

  if queries.shape[3] == block:
    to_queries, *sums = of_pair((0, 0))
    return jnp.reshape(to_queries, queries.shape), *sums, None

  def add(sums, pair):
    places = ((pair[0], 3), (pair[1], 2), (pair[1], 2))
    return tuple(
        _add_block(whole, part, number, block, axis)
        for whole, part, (number, axis) in zip(sums, of_pair(pair), places)
    )

  zeros = tuple(
      jnp.zeros(x.shape, matmul.sum_dtype(dtype))
      for x in (queries, keys, values)
  )
  return *_over_pairs(add, zeros, queries.shape[3] // block), None


def _over_queries(weights, rows):
  """Sums weights[…, q, s] · rows[…, q, h] over the queries."""
  turned = matmul.row_major(jnp.swapaxes(weights, -1, -2))
  return matmul.einsum("bksq,bkqh->bksh", turned, rows)


_causal.defvjp(_causal_fwd, _causal_bwd)
