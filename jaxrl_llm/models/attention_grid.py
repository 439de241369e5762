"""Walks a kernel over the pairs of blocks of attention_kernels.py.

A step is a row, a key head and a pair. Tables that lie with the scalars say
which blocks a pair is of, so that no step is spent on one that is all later.
"""

from collections.abc import Callable, Sequence
import math

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from jaxrl_llm import platforms
from jaxrl_llm import types
from jaxrl_llm.models import attention_kernels

Array = types.Array
Work = attention_kernels.Work

# Of VMEM, that a kernel may hold, bytes; v5p has 64 MiB per core, others more.
_MEMORY = 56 * 2**20


def call(
    kernel: Callable[..., None],
    work: Work,
    reach: types.PyTree,
    inputs: Sequence[tuple[Array, str]],
    outputs: Sequence[tuple[jax.ShapeDtypeStruct, str]],
    scratch: Sequence[tuple[int, ...]],
    products: int,
) -> Sequence[Array]:
  """Runs a kernel for each row, key head and pair.

  Args:
    kernel: of attention_kernels.py.
    work: sizes.
    reach: as in `attention_tpu.forward`.
    inputs: arrays, each with its kind in `_blocks`.
    outputs: what it makes, likewise.
    scratch: shapes of float32 arrays in VMEM.
    products: of a pair, that the kernel does.

  Returns:
    An array per output, in their order.
  """
  ids, near = reach
  window = jnp.zeros((), jnp.int32)
  if near is not None:
    ids, window = (*ids, near[0]), near[1]
  ids = jnp.stack(ids, axis=1)
  blocks = _blocks(work, ids.shape[1])
  inputs = ((ids, "query_ids"), (ids, "key_ids"), *inputs)
  tables = [jnp.asarray(x, jnp.int32) for x in zip(*work.pairs)]
  meets = seen(work, reach).astype(jnp.int32)

  def step(query, key, meets, window, query_ids, key_ids, *refs):
    row, number = pl.program_id(0), pl.program_id(2)
    pair = attention_kernels.Pair(
        query[number], key[number], meets[row, number] == 1, window[0],
        query_ids, key_ids,
    )
    kernel(work, pair, *refs)

  return pl.pallas_call(
      step,
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=4,
          grid=(work.rows, work.key_heads, len(work.pairs)),
          in_specs=[blocks[kind] for _, kind in inputs],
          out_specs=[blocks[kind] for _, kind in outputs],
          scratch_shapes=[pltpu.VMEM(x, jnp.float32) for x in scratch],
      ),
      out_shape=[made for made, _ in outputs],
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=("parallel", "parallel", "arbitrary"),
          vmem_limit_bytes=_MEMORY,
      ),
      cost_estimate=cost(work, (*inputs, *outputs), products),
      # Only to be tested.
      interpret=platforms.current() != "tpu",
  )(*tables, meets, jnp.reshape(window, (1,)), *(x for x, _ in inputs))


def seen(work: Work, reach: types.PyTree) -> Array:
  """Returns, bool [B, P], of which pairs a query may read a key.

  By the smallest and the largest segment of a block: True may also be said of
  a pair of which none may.
  """
  (own, parent), _ = reach
  split = lambda x: jnp.reshape(x, (work.rows, work.blocks, work.block))
  query, key = zip(*work.pairs)
  ends = lambda x, places: tuple(
      of(split(x), axis=2)[:, places] for of in (jnp.min, jnp.max)
  )
  low, high = ends(own, key)
  meets = lambda least, most: (least <= high) & (most >= low)
  return meets(*ends(own, query)) | meets(*ends(parent, query))


def _blocks(work, ids):
  """Returns which part of each kind of array a step has in VMEM."""
  group, block, width = work.group, work.block, work.head_dim
  # A step is a row, a key head and a pair; the two tables give the pair's.
  spec = lambda size, where: pl.BlockSpec(
      size, lambda b, k, pair, query, key, *_: where(
          b, k, query[pair], key[pair]
      )
  )
  return {
      "queries": spec(
          (1, 1, group, block, width), lambda b, k, q, _: (b, k, 0, q, 0)
      ),
      "keys": spec((1, 1, block, width), lambda b, k, _, s: (b, k, s, 0)),
      "row_of_keys": spec(
          (1, 1, work.tokens, width), lambda b, k, *_: (b, k, 0, 0)
      ),
      "row": spec(
          (1, 1, 1, 1, group * block), lambda b, k, q, _: (b, k, q, 0, 0)
      ),
      "query_ids": spec((1, ids, block), lambda b, k, q, _: (b, 0, q)),
      "key_ids": spec((1, ids, block), lambda b, k, _, s: (b, 0, s)),
  }


def cost(
    work: Work,
    arrays: Sequence[tuple[Array | jax.ShapeDtypeStruct, str]],
    products: int,
) -> pl.CostEstimate:
  """Returns what a call computes and moves, for XLA, which cannot see it.

  A block is moved when it is not that of the step before; pairs come by
  queries, so blocks of keys at each.

  Args:
    work: sizes.
    arrays: that are read or made, each with its kind in `_blocks`.
    products: of a pair.
  """
  pairs = len(work.pairs)
  moved = 0
  for array, kind in arrays:
    size = math.prod(array.shape) * array.dtype.itemsize
    if kind in ("keys", "key_ids"):
      size = size // work.blocks * pairs
    if kind in ("query_ids", "key_ids"):
      size *= work.key_heads
    moved += size
  scores = work.rows * work.key_heads * pairs * work.group * work.block**2
  return pl.CostEstimate(
      flops=products * 2 * scores * work.head_dim,
      transcendentals=scores,
      bytes_accessed=moved,
  )
