"""Masked reductions over packed rows, and the aggregation modes."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import kernels
from jaxrl_llm.losses import parts

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layout:
  """Where the response tokens of each packed sequence lie.

  Attributes:
    mask: bool [B, T], True on response tokens.
    segments: int32 [B, T], numbers the sequences of a row.
    starts: bool [B, T], True on the first token of each sequence.
    positions: float [B, T], 1 for the first response token of its sequence;
      tool tokens and padding are not counted.
    lengths: float [B, T], response tokens of the sequence.
  """

  mask: Array
  segments: Array
  starts: Array
  positions: Array
  lengths: Array


def layout(mask: Array, segments: Array | None, dtype: jnp.dtype) -> Layout:
  """Lays out packed rows; without segments a row is one sequence."""
  if segments is None:
    segments = jnp.ones(mask.shape, jnp.int32)
  changes = segments[:, 1:] != segments[:, :-1]
  starts = jnp.concatenate(
      [jnp.ones_like(mask[:, :1]), changes.astype(bool)], axis=1
  )
  ones = jnp.ones(mask.shape, dtype)
  positions = _running(ones, mask, starts)
  return Layout(mask, segments, starts, positions, _last(positions, starts))


def _running(values: Array, mask: Array, starts: Array) -> Array:
  kernel = kernels.form(
      kernels.cumulative_log_ratios, kernels.cumulative_log_ratios_parallel
  )
  return jax.vmap(kernel)(values, mask, starts)


def _last(values: Array, starts: Array) -> Array:
  kernel = kernels.form(kernels.last_values, kernels.last_values_parallel)
  return jax.vmap(kernel)(values, starts)


def running_sums(values: Array, where: Layout) -> Array:
  """Sums along each sequence up to and including the token, [B, T]."""
  return _running(values, where.mask, where.starts)


def sequence_sums(values: Array, where: Layout) -> Array:
  """Sum over the response tokens of the sequence, at every token of it."""
  return _last(running_sums(values, where), where.starts)


def restrict(where: Layout, mask: Array) -> Layout:
  """The layout with fewer response tokens."""
  return layout(where.mask & mask, where.segments, where.positions.dtype)


def sequence_quantiles(values: Array, where: Layout, q: Array) -> Array:
  """Linear quantile of the sequence's response tokens, at every token.

  Args:
    values: float [B, T]; ignored outside the mask.
    where: the layout.
    q: float scalar in [0, 1].

  Returns:
    float [B, T]; 0 on sequences without response tokens.
  """

  def row(values, mask, segments, lengths):
    owner = jnp.where(mask, segments, jnp.max(segments) + 1)
    order = jnp.lexsort((jnp.where(mask, values, 0.0), owner))
    first = jnp.searchsorted(owner[order], segments, side="left")
    rank = q * jnp.maximum(lengths - 1.0, 0.0)
    below = jnp.floor(rank)
    pick = lambda n: values[order[(first + n).astype(jnp.int32)]]
    low, high = pick(below), pick(jnp.ceil(rank))
    result = low + (rank - below) * (high - low)
    return jnp.where(lengths > 0, result, 0.0)

  return jax.vmap(row)(values, where.mask, where.segments, where.lengths)


def fill(values: Array, mask: Array) -> Array:
  """Zero outside the mask, whatever lies there, in value and gradient."""
  return jnp.where(mask, values, jnp.zeros((), values.dtype))


def clamp(values: Array, low: Array, high: Array) -> Array:
  """Clamps to the closed interval; gradient 1 on it, 0 beyond."""
  return jnp.where(values > high, high, jnp.where(values < low, low, values))


def cap(values: Array, high: Array) -> Array:
  """Caps from above; gradient 1 up to the cap, 0 beyond."""
  return jnp.where(values > high, high, values)


def sequence_count(where: Layout) -> Array:
  """Number of sequences that have a response token."""
  first = where.mask & (where.positions == 1)
  return jnp.sum(first, dtype=where.positions.dtype)


def _at_least_one(count: Array) -> Array:
  return jnp.maximum(count, 1.0)


@dataclasses.dataclass(frozen=True)
class TokenMean(parts.Part):
  """Σ_it m ℓ / Σ_it m."""

  formula = "a_it = 1 / Σ_jt m_jt"
  words = "mean over the response tokens of the mini-batch"

  def weights(self, where: Layout) -> Array:
    count = jnp.sum(where.mask, dtype=where.positions.dtype)
    return fill(jnp.ones_like(where.lengths) / _at_least_one(count), where.mask)


@dataclasses.dataclass(frozen=True)
class SequenceMeanTokenMean(parts.Part):
  """Mean over non-empty sequences of their token means."""

  formula = "a_it = 1 / (N n_i)"
  words = "mean over the N non-empty sequences of their token means"

  def weights(self, where: Layout) -> Array:
    sequences = _at_least_one(sequence_count(where))
    lengths = _at_least_one(where.lengths)
    return fill(1.0 / (sequences * lengths), where.mask)


@dataclasses.dataclass(frozen=True)
class SequenceMeanTokenSum(parts.Part):
  """Mean over non-empty sequences of their token sums."""

  formula = "a_it = 1 / N"
  words = "mean over the N non-empty sequences of their token sums"

  def weights(self, where: Layout) -> Array:
    sequences = _at_least_one(sequence_count(where))
    return fill(jnp.ones_like(where.lengths) / sequences, where.mask)


@dataclasses.dataclass(frozen=True)
class SequenceMeanTokenSumNorm(parts.Part):
  """Mean over non-empty sequences of their token sums / horizon."""

  horizon: float | None = parts.key(
      None,
      "tokens by which seq-mean-token-sum-norm divides a response's sum",
      above=0.0,
  )

  formula = "a_it = 1 / (N H), H = {horizon:g} tokens"
  words = "mean over the N non-empty sequences of their token sums / H"

  def weights(self, where: Layout) -> Array:
    sequences = _at_least_one(sequence_count(where))
    weights = jnp.ones_like(where.lengths) / (sequences * self.horizon)
    return fill(weights, where.mask)


@dataclasses.dataclass(frozen=True)
class TokenSum(parts.Part):
  """Σ_it m ℓ."""

  formula = "a_it = 1"
  words = "sum over the response tokens of the mini-batch, divided by nothing"

  def weights(self, where: Layout) -> Array:
    return fill(jnp.ones_like(where.lengths), where.mask)


AGGREGATIONS = {
    "token-mean": TokenMean,
    "seq-mean-token-mean": SequenceMeanTokenMean,
    "seq-mean-token-sum": SequenceMeanTokenSum,
    "seq-mean-token-sum-norm": SequenceMeanTokenSumNorm,
    "token-sum": TokenSum,
}
