"""Keys and values of earlier tokens, in slots, and how they move.

The layers of a model are cut into parts, one after another; every function
here maps over the parts. See `decoder.serve` for why.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import matmul
from jaxrl_llm.models import own_parts
from jaxrl_llm.models import sharding

Array = types.Array

# Capacities are multiples of this many tokens, and sums over the cache run
# over one such block after another: so a longer capacity changes no bit.
BLOCK = 64
# Logical axes of a part's keys and values, and of those of recent tokens.
_KEYS = ("layers", "batch", "kv_heads", "head_dim", None)
_VALUES = ("layers", "batch", "kv_heads", None, "head_dim")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
  """Keys and values per layer and slot, with room for C tokens.

  The order of the axes is what the products of `cached_attention.attend` read
  without turning: their last axis is not the summed one.

  Attributes:
    keys: per part, [L', S, K, H, C] after rotation, in the compute dtype;
      bfloat16 is held as its bits (see matmul.to_bits).
    values: per part, [L', S, K, C, H], as keys.
  """

  keys: tuple[Array, ...]
  values: tuple[Array, ...]

  @property
  def capacity(self) -> int:
    """Tokens that a slot can hold."""
    return self.values[0].shape[3]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Recent:
  """Keys and values of up to R tokens that are not in the cache yet.

  All slots write at the same index, which is far cheaper than where each has
  got to; `append` moves them when the R are full.

  Attributes:
    keys: per part, [L', S, K, R, H], as Cache.keys.
    values: likewise.
  """

  keys: tuple[Array, ...]
  values: tuple[Array, ...]


def _zeros(parts, shape, dtype):
  zero = matmul.to_bits(jnp.zeros((), dtype))
  return tuple(jnp.full((layers, *shape), zero) for layers in parts)


def laid_out(cache: Cache) -> Cache:
  """Pins slots and heads to the mesh in context, if any."""
  return Cache(
      tuple(sharding.constrain(keys, _KEYS) for keys in cache.keys),
      tuple(sharding.constrain(values, _VALUES) for values in cache.values),
  )


def empty(
    config: config_lib.ModelConfig,
    dtype: jnp.dtype,
    parts: tuple[int, ...],
    slots: int,
    capacity: int,
) -> Cache:
  """Returns a cache of zeros.

  Args:
    config: sizes.
    dtype: compute dtype.
    parts: layers of each part.
    slots: S.
    capacity: C, a multiple of BLOCK.
  """
  heads = (slots, config.kv_heads)
  return laid_out(
      Cache(
          _zeros(parts, (*heads, config.head_dim, capacity), dtype),
          _zeros(parts, (*heads, capacity, config.head_dim), dtype),
      )
  )


def no_recent(cache: Cache, tokens: int) -> Recent:
  """Returns room for R = `tokens` tokens beside a cache."""

  def zeros(values):
    shape = (*values.shape[:3], tokens, values.shape[4])
    return sharding.constrain(jnp.zeros(shape, values.dtype), _VALUES)

  zeroed = tuple(map(zeros, cache.values))
  return Recent(zeroed, zeroed)


def of_rows(keys: Array, values: Array) -> tuple[Array, Array]:
  """Turns the bits of a part's [L', B, P, K, H] into the cache's order."""
  return jnp.transpose(keys, (0, 1, 3, 4, 2)), jnp.swapaxes(values, 2, 3)


def resize(cache: Cache, capacity: int) -> Cache:
  """Gives slots room for `capacity` tokens; what is beyond is dropped."""
  change = capacity - cache.capacity

  def fit(array, axis):
    if change < 0:
      return jax.lax.slice_in_dim(array, 0, capacity, axis=axis)
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, change)
    return jnp.pad(array, padding)

  return laid_out(
      Cache(
          tuple(fit(keys, 4) for keys in cache.keys),
          tuple(fit(values, 3) for values in cache.values),
      )
  )


def append(cache: Cache, recent: Recent, lengths: Array) -> Cache:
  """Writes recent tokens behind what each slot holds.

  Args:
    cache: of S slots; donate it.
    recent: R tokens per slot.
    lengths: int32 [S], tokens that each holds, at most C − R; a slot at rest
      may be given any.
  """
  at = _specs()
  recent_at = Recent(at.values, at.values)
  slots_at = sharding.partition_spec(("batch",))
  append_here = own_parts.on_each_device(
      _append, (at, recent_at, slots_at), at
  )
  return append_here(cache, recent, jnp.asarray(lengths))


def _specs(slots: str | None = "batch") -> Cache:
  """Returns the PartitionSpecs of a cache whose slots are named so."""
  return Cache(
      sharding.partition_spec((_KEYS[0], slots, *_KEYS[2:])),
      sharding.partition_spec((_VALUES[0], slots, *_VALUES[2:])),
  )


def _append(cache, recent, lengths):
  """Appends to the slots of one device."""

  slots = lengths.shape[0]

  def put(step, cache):
    # Backwards: the compiler for TPUs takes a loop over slots 0, 1, … for a
    # copy of the whole recent array, and fails on its shape.
    slot = slots - 1 - step

    def write(old, new, axis):
      new = jax.lax.dynamic_slice_in_dim(new, slot, 1, axis=1)
      new = jnp.swapaxes(new, 3, axis)
      start = [0] * old.ndim
      start[1], start[axis] = slot, lengths[slot]
      return jax.lax.dynamic_update_slice(old, new, start)

    keys = functools.partial(write, axis=4)
    values = functools.partial(write, axis=3)
    return Cache(
        tuple(map(keys, cache.keys, recent.keys)),
        tuple(map(values, cache.values, recent.values)),
    )

  return jax.lax.fori_loop(0, slots, put, cache)


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

  # Any slot may take any row, so each device is given all rows.
  everywhere = sharding.partition_spec(())
  spread = own_parts.parts_of_rows(prefilled.keys[0].shape[1]) > 1
  insert_here = own_parts.on_each_device(
      _insert_spread if spread else _insert,
      (
          _specs(),
          everywhere,
          _specs("batch" if spread else None),
          everywhere,
      ),
      _specs(),
  )
  return insert_here(cache, jnp.asarray(slots), prefilled, jnp.asarray(rows))


def _insert(cache, slots, prefilled, rows):
  """Inserts into the slots of one device."""
  put = functools.partial(_put_rows, slots=slots, rows=rows, layer=0)
  return jax.tree.map(put, cache, prefilled)


def _insert_spread(cache, slots, prefilled, rows):
  """Does so with rows that lie on all devices, gathered layer by layer."""

  def insert_part(held, own):
    def put(layer, held):
      new = jax.lax.dynamic_slice_in_dim(own, layer, 1)
      new = jax.lax.all_gather(
          new, sharding.RULES["batch"], axis=1, tiled=True
      )
      return _put_rows(held, new, slots, rows, layer)

    return jax.lax.fori_loop(0, held.shape[0], put, held)

  return jax.tree.map(insert_part, cache, prefilled)


def _put_rows(held, new, slots, rows, layer):
  """Copies rows [_, B, …] to slots of one device, from a layer on."""
  # One row after another, in place: a scatter would first lay out all M rows.
  count = held.shape[1]
  slots = slots - own_parts.first_row(count)
  wanted = (slots >= 0) & (slots < count)
  order = jnp.argsort(~wanted)

  def copy(step, held):
    slot, row = slots[order[step]], rows[order[step]]
    return jax.lax.dynamic_update_slice(
        held, jax.lax.dynamic_slice_in_dim(new, row, 1, 1),
        (layer, slot, 0, 0, 0),
    )

  return jax.lax.fori_loop(0, jnp.sum(wanted), copy, held)
