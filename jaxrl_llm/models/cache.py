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
  """Keys and values per layer and slot, with room for C tokens.

  The order of the axes is what the products of `attention.cached` read
  without turning: their last axis is not the summed one.

  Attributes:
    keys: [L, S, K, H, C] after rotation, in the compute dtype; bfloat16 is
      held as its bits (see matmul.to_bits).
    values: [L, S, K, C, H], as keys.
  """

  keys: Array
  values: Array

  @property
  def capacity(self) -> int:
    """Tokens that a slot can hold."""
    return self.values.shape[3]


def empty(
    config: config_lib.ModelConfig,
    dtype: jnp.dtype,
    slots: int,
    capacity: int,
) -> Cache:
  """Returns a cache of zeros."""
  heads = (config.layers, slots, config.kv_heads)
  zeros = matmul.to_bits(jnp.zeros((), dtype))
  return Cache(
      jnp.full((*heads, config.head_dim, capacity), zeros),
      jnp.full((*heads, capacity, config.head_dim), zeros),
  )


def of_rows(keys: Array, values: Array) -> Cache:
  """Takes the bits of keys and values [L, B, P, K, H] of whole rows."""
  return Cache(
      jnp.transpose(keys, (0, 1, 3, 4, 2)), jnp.swapaxes(values, 2, 3)
  )


def append(
    cache: Cache, positions: Array, keys: Array, values: Array
) -> Cache:
  """Writes the bits of one token's keys and values per slot.

  Args:
    cache: of S slots.
    positions: int32 [S]; the capacity or beyond is not written.
    keys: [L, S, K, H].
    values: as keys.
  """
  slots = jnp.arange(positions.shape[0])
  # Indexing with both puts the slots first.
  keys, values = (jnp.swapaxes(new, 0, 1) for new in (keys, values))
  return Cache(
      cache.keys.at[:, slots, :, :, positions].set(keys, mode="drop"),
      cache.values.at[:, slots, :, positions].set(values, mode="drop"),
  )


def insert(cache: Cache, slots: Array, prefilled: Cache, rows: Array) -> Cache:
  """Copies prefilled prompts into slots.

  Args:
    cache: of S slots; donate it.
    slots: int32 [M], distinct destinations; one of S or beyond is skipped,
      which lets a call of fixed M fill fewer.
    prefilled: of B rows and capacity P ≤ C, from `Policy.prefill`.
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
