"""Where arrays lie on the devices: one mesh, one table of rules.

Parameters carry logical axis names; RULES maps a name to mesh axes. Under
`with jax.set_mesh(mesh):` the model also pins its activations to the rows of
the batch, so that the compiler gathers weights and not activations.
"""

from collections.abc import Mapping, Sequence
import math

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from jaxrl_llm import types

Array = types.Array

MESH_AXES = ("data", "fsdp", "tensor")
RULES: Mapping[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "norm": None,
}


def make_mesh(text: str, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Builds the mesh that a line such as "data=2,fsdp=4" describes.

  Args:
    text: sizes by axis name; an axis that is not named has size 1.
    devices: taken in order; all of them by default. A single-process mesh may
      use fewer than there are.

  Returns:
    A mesh with the axes of MESH_AXES.

  Raises:
    ValueError: on an unknown axis, a bad size or too few devices.
  """
  sizes = dict.fromkeys(MESH_AXES, 1)
  unnamed = set(sizes)
  for part in text.split(","):
    name, _, size = (x.strip() for x in part.partition("="))
    if name not in unnamed or not size.isdecimal() or int(size) < 1:
      raise ValueError(
          f"mesh: expected axis=size with axis one of {', '.join(MESH_AXES)}, "
          f"each at most once, and size >= 1, found {part!r}; write for "
          'example "data=2,fsdp=4".'
      )
    unnamed.remove(name)
    sizes[name] = int(size)
  devices = jax.devices() if devices is None else devices
  needed = math.prod(sizes.values())
  if needed > len(devices):
    raise ValueError(
        f"mesh: {text!r} needs {needed} devices, found {len(devices)}; make "
        "the axes smaller or add devices."
    )
  return jax.make_mesh(
      tuple(sizes.values()),
      MESH_AXES,
      axis_types=(AxisType.Auto,) * len(MESH_AXES),
      devices=devices[:needed],
  )


def partition_spec(names: Sequence[str | None]) -> PartitionSpec:
  """Maps the logical axis names of one array to mesh axes."""
  return PartitionSpec(*(name and RULES[name] for name in names))


def shardings(
    mesh: Mesh, logical_axes: types.PyTree, shapes: types.PyTree
) -> types.PyTree:
  """Places a tree of parameters.

  Args:
    mesh: as made by make_mesh.
    logical_axes: `Policy.logical_axes`.
    shapes: arrays or shape structs of the same tree (`Policy.shapes`).

  Returns:
    The tree of NamedShardings.

  Raises:
    ValueError: when a dimension does not divide over its mesh axis.
  """

  def place(path, names, array):
    spec = partition_spec(names)
    for size, name, axis in zip(array.shape, names, spec, strict=True):
      if axis is not None and size % mesh.shape[axis]:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        raise ValueError(
            f"mesh: {where} has {size} {name}, expected a multiple of "
            f"{axis}={mesh.shape[axis]}; choose another size for {axis}."
        )
    return NamedSharding(mesh, spec)

  return jax.tree_util.tree_map_with_path(
      place, logical_axes, shapes, is_leaf=lambda x: isinstance(x, tuple)
  )


def rows(mesh: Mesh) -> NamedSharding:
  """Places arrays whose first axis is the rows of a batch."""
  return NamedSharding(mesh, partition_spec(("batch",)))


def replicated(mesh: Mesh) -> NamedSharding:
  """Places a whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def constrain_rows(array: Array) -> Array:
  """Pins the first axis to the batch axes of the mesh in context, if any.

  A number of rows that does not divide is left to the compiler.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return array
  parts = math.prod(mesh.shape[axis] for axis in RULES["batch"])
  if array.shape[0] % parts:
    return array
  return jax.lax.with_sharding_constraint(array, partition_spec(("batch",)))
