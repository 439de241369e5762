"""What each device of the mesh in context does with its own part of arrays.

For what the compiler, given whole arrays, would move more of than it has to.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import sharding

Array = types.Array


def over_layers(function: Callable, stack: types.PyTree) -> types.PyTree:
  """Maps a function over the leading axis: on a mesh one after another."""
  alone = jax.sharding.get_abstract_mesh().empty
  return jax.vmap(function)(stack) if alone else jax.lax.map(function, stack)


def on_each_device(
    function: Callable, inputs: types.PyTree, outputs: types.PyTree
) -> Callable:
  """Runs a function on what each device of the mesh in context holds.

  Args:
    function: of arrays; without a mesh it is called with whole ones.
    inputs: PartitionSpecs of the arguments, a prefix of their tree. An
      argument that lies otherwise is moved, so a spec without an axis gathers
      over it.
    outputs: of the result, likewise.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return function
  return jax.shard_map(
      function, in_specs=inputs, out_specs=outputs, check_vma=False
  )


def parts_of_rows(rows: int) -> int:
  """Returns over how many parts of the mesh in context `rows` are spread."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.manual_axes or rows % sharding.row_parts(mesh):
    return 1
  return sharding.row_parts(mesh)


def on_own_rows(
    function: Callable, rows: int, inputs: types.PyTree, outputs: types.PyTree
) -> Callable:
  """Runs a function on the rows of each device of the mesh in context.

  Only the axes of the batch are taken apart: what is spread over the axis
  tensor stays with the compiler.

  Args:
    function: of arrays; where rows are not spread it is called with whole
      ones.
    rows: B.
    inputs: PartitionSpecs of the arguments, a prefix of their tree: that of
      sharding.partition_spec(("batch",)), or an empty one for what every
      device is given whole.
    outputs: of the result, likewise.
  """
  if parts_of_rows(rows) == 1:
    return function
  return jax.shard_map(
      function,
      in_specs=inputs,
      out_specs=outputs,
      axis_names=set(sharding.RULES["batch"]),
      check_vma=False,
  )


def sum_over_rows(stack: Array, names: Sequence[str | None]) -> Array:
  """Sums the gradients of a parameter that the parts of the rows gave.

  Each device is given its part of the sum alone. Written out, since the
  compiler would give everyone the whole of it, which sends twice as much.

  Args:
    stack: [P, ...], one per part, as `on_own_rows` makes it.
    names: logical axes of the parameter, one of them "embed".

  Returns:
    [...], of the dtype of the stack.
  """
  if stack.shape[0] == 1:
    return sharding.constrain(stack[0], names)

  def scatter(own):
    part = jax.lax.psum_scatter(
        own[0], "fsdp", scatter_dimension=names.index("embed"), tiled=True
    )
    return jax.lax.psum(part, "data")

  whole = [None if name == "embed" else name for name in names]
  return on_each_device(
      scatter,
      sharding.partition_spec(("batch", *whole)),
      sharding.partition_spec(names),
  )(stack)


def lookup(table: Array, index: Array) -> Array:
  """Reads rows of a parameter with the axes ("vocab", "embed").

  The table is gathered over fsdp like every other weight, and its gradient is
  summed as by `sum_over_rows`.

  Args:
    table: [V, D].
    index: int32 [B, T].

  Returns:
    [B, T, D].
  """
  if parts_of_rows(index.shape[0]) == 1:
    return sharding.constrain(table, ("vocab", None))[index]

  def read(part, index):
    whole = jax.lax.all_gather(part, "fsdp", axis=1, tiled=True)
    place = index - jax.lax.axis_index("tensor") * whole.shape[0]
    held = (place >= 0) & (place < whole.shape[0])
    rows = whole[jnp.clip(place, 0, whole.shape[0] - 1)]
    return jnp.where(held[..., None], rows, jnp.zeros_like(rows))[None]

  found = on_each_device(
      read,
      (
          sharding.partition_spec(("vocab", "embed")),
          sharding.partition_spec(("batch",)),
      ),
      sharding.partition_spec(("vocab", "batch")),
  )(table, index)
  # One has the row, the others zeros; of bits, too.
  return jnp.sum(found, axis=0, dtype=found.dtype)


def first_row(rows_here: int) -> Array | int:
  """Returns the number of a device's first row, inside `on_each_device`."""
  if jax.sharding.get_abstract_mesh().empty:
    return 0
  return jax.lax.axis_index(sharding.RULES["batch"]) * rows_here
