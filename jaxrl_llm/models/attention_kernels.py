"""What the kernels of attention_tpu.py do with one pair of blocks.

Scores lie turned, [keys, queries]: what is kept per query is a row, and sums
over keys go down the rows of a register. The queries of a block, G heads of
each, are one axis, G · block.
"""

import dataclasses

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import scores as scores_lib

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Work:
  """Sizes and options of one call; queries are [B, K, G, T', H].

  Attributes:
    rows: B.
    key_heads: K.
    group: G.
    tokens: T', a multiple of `block`.
    head_dim: H.
    block: tokens of a block.
    dtype: of the inputs of products.
    rule: how products become scores.
    windowed: whether positions and a window are given.
  """

  rows: int
  key_heads: int
  group: int
  tokens: int
  head_dim: int
  block: int
  dtype: jnp.dtype
  rule: scores_lib.Rule
  windowed: bool

  @property
  def blocks(self) -> int:
    """Blocks of a row."""
    return self.tokens // self.block

  @property
  def pairs(self) -> list[tuple[int, int]]:
    """Pairs (queries, keys) that are not all later, by queries."""
    return [(q, k) for q in range(self.blocks) for k in range(q + 1)]


@dataclasses.dataclass(frozen=True)
class Pair:
  """Which blocks meet in one step, and who may read whom.

  Attributes:
    query: number of the block of queries.
    key: number of the block of keys.
    seen: whether a query may read a key of it; where it is False, none may.
    window: int32, read where the work is windowed.
    query_ids: [1, 2 or 3, block], segments, parents and positions.
    key_ids: likewise, of the keys.
  """

  query: Array
  key: Array
  seen: Array
  window: Array
  query_ids: jax.Ref
  key_ids: jax.Ref


def _bias(work, pair):
  """Returns 0 where a key may be read, else MASKED: [block, G · block]."""
  block = work.block

  def column(number):
    row = pair.key_ids[0, number : number + 1]
    return jnp.transpose(jnp.broadcast_to(row, (8, block)))[:, :1]

  own, parent = pair.query_ids[0, 0:1], pair.query_ids[0, 1:2]
  segments = column(0)
  place = lambda axis: jax.lax.broadcasted_iota(
      jnp.int32, (block, block), axis
  )
  later = pair.key * block + place(0) > pair.query * block + place(1)
  allowed = ((own == segments) | (parent == segments)) & ~later
  if work.windowed:
    allowed &= pair.query_ids[0, 2:3] - column(2) < pair.window
  bias = jnp.where(allowed, 0.0, scores_lib.MASKED)
  return jnp.concatenate([bias] * work.group, axis=1)


def _product(left, right, summed, work):
  """Multiplies matrices over one axis of each, with sums in float32."""
  exact = work.dtype == jnp.float32
  return jax.lax.dot_general(
      left,
      right,
      (((summed[0],), (summed[1],)), ((), ())),
      precision=jax.lax.Precision.HIGHEST if exact else None,
      preferred_element_type=jnp.float32,
  )


def _flat(ref, work):
  """Reads [G · block, H] of a block of queries."""
  return jnp.reshape(ref[0, 0], (work.group * work.block, work.head_dim))


def _scores(queries, keys, work, pair):
  """Returns masked scores, [block, G · block]."""
  products = _product(keys, queries, (1, 1), work)
  return work.rule.scores(products, work.head_dim) + _bias(work, pair)


def forward(
    work: Work,
    pair: Pair,
    queries: jax.Ref,
    keys: jax.Ref,
    values: jax.Ref,
    outputs: jax.Ref,
    log_sums: jax.Ref,
    peaks: jax.Ref,
    totals: jax.Ref,
    sums: jax.Ref,
) -> None:
  """Adds a block of keys to the sums of a block of queries.

  Args:
    work: sizes.
    pair: of blocks.
    queries: [1, 1, G, block, H].
    keys: [1, 1, block, H]; so values.
    values: see keys.
    outputs: as queries, float32, written with the last block of keys.
    log_sums: [1, 1, 1, 1, G · block], likewise.
    peaks: [1, G · block], the largest score so far.
    totals: as peaks, the sum of exponentials.
    sums: [H, G · block], that of the values.
  """

  @pl.when(pair.key == 0)
  def _():
    peaks[...] = jnp.full_like(peaks, scores_lib.MASKED)
    totals[...] = jnp.zeros_like(totals)
    sums[...] = jnp.zeros_like(sums)

  @pl.when(pair.seen)
  def _():
    scores = _scores(_flat(queries, work), keys[0, 0], work, pair)
    peak = peaks[...]
    risen = jnp.maximum(peak, jnp.max(scores, axis=0, keepdims=True))
    shrunk = jnp.exp(peak - risen)
    weights = jnp.exp(scores - risen)
    peaks[...] = risen
    total = jnp.sum(weights, axis=0, keepdims=True)
    totals[...] = totals[...] * shrunk + total
    added = _product(values[0, 0], weights.astype(work.dtype), (0, 0), work)
    sums[...] = sums[...] * shrunk + added

  @pl.when(pair.key == pair.query)
  def _():
    made = jnp.transpose(sums[...] / totals[...])
    outputs[0, 0] = jnp.reshape(made, outputs.shape[2:])
    log_sums[0, 0, 0] = peaks[...] + jnp.log(totals[...])


def backward(
    work: Work,
    pair: Pair,
    queries: jax.Ref,
    keys: jax.Ref,
    values: jax.Ref,
    given: jax.Ref,
    log_sums: jax.Ref,
    inner: jax.Ref,
    to_queries: jax.Ref,
    to_keys: jax.Ref,
    to_values: jax.Ref,
    sums: jax.Ref,
) -> None:
  """Adds what a pair of blocks gives to the three gradients.

  Args:
    work: sizes.
    pair: of blocks.
    queries: as in `forward`; so keys, values and log_sums.
    keys: see queries.
    values: see queries.
    given: as queries, what the outputs receive.
    log_sums: see queries.
    inner: as log_sums, outputs times what they receive.
    to_queries: as queries, float32, written with the last block of keys.
    to_keys: [1, 1, T', H], float32; so to_values.
    to_values: see to_keys.
    sums: [H, G · block], to the queries so far.
  """

  @pl.when(pair.query == 0)
  def _():
    to_keys[...] = jnp.zeros_like(to_keys)
    to_values[...] = jnp.zeros_like(to_values)

  @pl.when(pair.key == 0)
  def _():
    sums[...] = jnp.zeros_like(sums)

  @pl.when(pair.seen)
  def _():
    key, query, cotangent = keys[0, 0], _flat(queries, work), _flat(given, work)
    scores = _scores(query, key, work, pair)
    weights = jnp.exp(scores - log_sums[0, 0, 0])
    to_weights = _product(values[0, 0], cotangent, (1, 1), work)
    to_scores = weights * (to_weights - inner[0, 0, 0])
    to_scores *= work.rule.slopes(scores, work.head_dim)
    to_scores = to_scores.astype(work.dtype)
    weights = weights.astype(work.dtype)
    here = pl.ds(pl.multiple_of(pair.key * work.block, work.block), work.block)
    to_values[0, 0, here] += _product(weights, cotangent, (1, 0), work)
    to_keys[0, 0, here] += _product(to_scores, query, (1, 0), work)
    sums[...] += _product(key, to_scores, (0, 0), work)

  @pl.when(pair.key == pair.query)
  def _():
    made = jnp.transpose(sums[...])
    to_queries[0, 0] = jnp.reshape(made, to_queries.shape[2:])
