"""Causal attention for TPUs: one Pallas kernel forward, one backward.

Does what the sums over pairs of blocks in attention.py do, from the same
inputs to the same results. There each operation on a pair is a program of its
own; here a pair is one step of a kernel (attention_kernels.py), and pairs of
which no query may read a key are passed over. Nothing of this has run on a TPU:
it was run interpreted, and compiled.
"""

import jax
import jax.numpy as jnp

from jaxrl_llm import platforms
from jaxrl_llm import types
from jaxrl_llm.models import attention_grid
from jaxrl_llm.models import attention_kernels
from jaxrl_llm.models import own_parts
from jaxrl_llm.models import scores as scores_lib
from jaxrl_llm.models import sharding

Array = types.Array

# Columns of a register, of which blocks are multiples.
_LANES = 128
# Of one pair, most keys, and most queries times heads of a group.
_KEYS, _QUERIES = 512, 2048
# Fewest tokens that were found to pay; experiments/scale/NOTES.md.
_LEAST = 512
# Most T · H: the gradients of a head's keys and values lie in VMEM, twice.
_MOST = 2**21


def block_of(tokens: int, group: int) -> int:
  """Returns how many tokens a block has.

  Args:
    tokens: T.
    group: query heads that share a key head.
  """
  most = max(_LANES, min(_KEYS, _QUERIES // group // _LANES * _LANES))
  blocks = -(-tokens // most)
  return -(-tokens // blocks // _LANES) * _LANES


def pays(queries: Array, keys: Array) -> bool:
  """Whether the kernels run here, and better than the sums over pairs.

  Args:
    queries: [B, T, N, H].
    keys: [B, T, K, H].
  """
  _, tokens, _, width = queries.shape
  return (
      platforms.current() == "tpu"
      and tokens >= _LEAST
      and tokens * width <= _MOST
      and _divides(queries, keys)
  )


def _divides(queries, keys):
  """Whether each device of the mesh in context has whole rows and heads."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return True
  return not (
      mesh.manual_axes
      or queries.shape[0] % sharding.row_parts(mesh)
      or keys.shape[2] % mesh.shape[sharding.RULES["kv_heads"]]
  )


def forward(
    queries: Array,
    keys: Array,
    values: Array,
    reach: types.PyTree,
    block: int,
    rule: scores_lib.Rule,
) -> tuple[Array, Array]:
  """Attends, on each device to its own rows and heads.

  Args:
    queries: [B, K, G, T', H], bfloat16 or float32.
    keys: [B, K, T', H], of the same dtype.
    values: as keys.
    reach: ((segments, parents), None or (positions, window)); int32 [B, T']
      but for the window.
    block: tokens of a block, a multiple of 128 that divides T'.
    rule: how products become scores.

  Returns:
    Outputs like queries and log-sums [B, K, G, T'], float32.
  """

  def run(reach, queries, keys, values):
    work = _work(queries, reach, block, rule)
    row = jax.ShapeDtypeStruct(_rows_of(work), jnp.float32)
    outputs, log_sums = attention_grid.call(
        attention_kernels.forward,
        work,
        reach,
        ((queries, "queries"), (keys, "keys"), (values, "keys")),
        ((_like(queries), "queries"), (row, "row")),
        ((1, row.shape[-1]),) * 2 + ((work.head_dim, row.shape[-1]),),
        products=2,
    )
    return outputs, _from_rows(log_sums, work)

  return _on_own(run, 3, 2, reach)(reach, queries, keys, values)


def backward(
    queries: Array,
    keys: Array,
    values: Array,
    given: Array,
    log_sums: Array,
    inner: Array,
    reach: types.PyTree,
    block: int,
    rule: scores_lib.Rule,
) -> tuple[Array, Array, Array]:
  """Pulls back through `forward`.

  Args:
    queries: as in `forward`; so keys, values, reach, block and rule.
    keys: see queries.
    values: see queries.
    given: as queries, what the outputs receive.
    log_sums: float32 [B, K, G, T'].
    inner: float32 [B, K, G, T'], outputs times what they receive.
    reach: see queries.
    block: see queries.
    rule: see queries.

  Returns:
    What queries, keys and values receive, float32.
  """

  def run(reach, queries, keys, values, given, log_sums, inner):
    work = _work(queries, reach, block, rule)
    return attention_grid.call(
        attention_kernels.backward,
        work,
        reach,
        (
            (queries, "queries"),
            (keys, "keys"),
            (values, "keys"),
            (given, "queries"),
            (_to_rows(log_sums, work), "row"),
            (_to_rows(inner, work), "row"),
        ),
        (
            (_like(queries), "queries"),
            (_like(keys), "row_of_keys"),
            (_like(values), "row_of_keys"),
        ),
        ((work.head_dim, work.group * work.block),),
        products=5,
    )

  own = _on_own(run, 6, 3, reach)
  return tuple(own(reach, queries, keys, values, given, log_sums, inner))


def _on_own(function, inputs, outputs, reach):
  """Runs a function of reach and arrays [B, K, …] on what each device has."""
  rows, heads = (
      sharding.partition_spec(x) for x in (("batch",), ("batch", "kv_heads"))
  )
  _, near = reach
  whole = jax.sharding.PartitionSpec()
  of_reach = (rows, None if near is None else (rows, whole))
  return own_parts.on_each_device(
      function, (of_reach, *(heads,) * inputs), (heads,) * outputs
  )


def _work(queries, reach, block, rule):
  windowed = reach[1] is not None
  return attention_kernels.Work(
      *queries.shape, block, queries.dtype, rule, windowed
  )


def _like(array):
  return jax.ShapeDtypeStruct(array.shape, jnp.float32)


def _rows_of(work):
  width = work.group * work.block
  return work.rows, work.key_heads, work.blocks, 1, width


def _to_rows(values, work):
  """Turns [B, K, G, T'] into [B, K, blocks, 1, G · block]."""
  split = (*values.shape[:3], work.blocks, work.block)
  turned = jnp.swapaxes(jnp.reshape(values, split), 2, 3)
  return jnp.reshape(turned, _rows_of(work))


def _from_rows(values, work):
  """Undoes `_to_rows`."""
  split = (*values.shape[:3], work.group, work.block)
  turned = jnp.swapaxes(jnp.reshape(values, split), 2, 3)
  return jnp.reshape(turned, (*turned.shape[:3], work.tokens))
