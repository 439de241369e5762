"""Keys and values of earlier tokens, in slots, and how they move."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import matmul

Array = types.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
  """Keys and values per layer and slot, capacity C inside kv-heads.

  The order of the axes lets a slot's products read contiguous [C, H].

  Attributes:
    keys: [L, S, K, C, H] after rotation, in the compute dtype; bfloat16 is
      held as its bits (see matmul.to_bits).
    values: as keys.
  """

  keys: Array
  values: Array

  @property
  def capacity(self) -> int:
    """Tokens that a slot can hold."""
    return self.keys.shape[3]


def empty(
    config: config_lib.ModelConfig,
    dtype: jnp.dtype,
    slots: int,
    capacity: int,
) -> Cache:
  """Returns a cache of zeros."""
  shape = (config.layers, slots, config.kv_heads, capacity, config.head_dim)
  zeros = matmul.to_bits(jnp.zeros(shape, dtype))
  return Cache(zeros, jnp.copy(zeros))


def of_rows(keys: Array, values: Array) -> Cache:
  """Takes the bits of keys and values [L, B, P, K, H] of whole rows."""
  return Cache(jnp.swapaxes(keys, 2, 3), jnp.swapaxes(values, 2, 3))


def append(
    cache: Cache, positions: Array, keys: Array, values: Array
) -> Cache:
  """Writes the bits of one token's keys and values per slot.

  Args:
    cache: [L, S, K, C, H].
    positions: int32 [S]; the capacity or beyond is not written.
    keys: [L, S, K, H].
    values: as keys.
  """
  slots = jnp.arange(positions.shape[0])

  def write(cached, new):
    new = jnp.swapaxes(new, 0, 1)
    return cached.at[:, slots, :, positions].set(new, mode="drop")

  return Cache(write(cache.keys, keys), write(cache.values, values))


def insert(cache: Cache, slots: Array, prefilled: Cache, rows: Array) -> Cache:
  """Copies prefilled prompts into slots.

  Args:
    cache: [L, S, K, C, H]; donate it.
    slots: int32 [M], distinct destinations; one of S or beyond is skipped,
      which lets a call of fixed M fill fewer.
    prefilled: [L, B, K, P, H] with P ≤ C, from `Policy.prefill`.
    rows: int32 [M], the prefilled row that each slot receives; a row may be
      given to many slots.

  Returns:
    The cache; entries of the slots beyond P stay, unread until rewritten.
  """
  length = prefilled.capacity
  if length > cache.capacity:
    raise ValueError(
        f"cache: prompts are padded to {length} tokens, expected at most the "
        f"capacity {cache.capacity}; make the cache larger."
    )

  # One row after another, in place: a scatter would first lay out all M rows.
  slots, rows = jnp.asarray(slots), jnp.asarray(rows)
  wanted = slots < cache.keys.shape[1]
  order = jnp.argsort(~wanted)

  def copy(step, cache):
    slot, row = slots[order[step]], rows[order[step]]
    return jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_slice_in_dim(
            old, jax.lax.dynamic_slice_in_dim(new, row, 1, 1), slot, axis=1
        ),
        cache,
        prefilled,
    )

  return jax.lax.fori_loop(0, jnp.sum(wanted), copy, cache)
