"""Where arrays lie on the devices: one mesh, one table of rules.

Parameters and caches carry logical axis names; RULES maps a name to mesh axes.
Under `with jax.set_mesh(mesh):` the model also pins its activations to the
rows of the batch, so that the compiler gathers weights and not activations.
"""

from collections.abc import Mapping, Sequence
import itertools
import math

import jax
from jax.experimental import mesh_utils
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
    "rank": None,
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
  if jax.process_count() > 1 and needed != len(devices):
    raise ValueError(
        f"mesh: {text!r} has {needed} devices, expected all {len(devices)} of "
        f"{jax.process_count()} processes; make the axes larger."
    )
  # An axis may take part of an axis of the torus, as tensor=2 of 4x4x4.
  grid = mesh_utils.create_device_mesh(
      tuple(sizes.values()),
      devices[:needed],
      allow_split_physical_axes=True,
  )
  return Mesh(
      grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES)
  )


def partition_spec(names: Sequence[str | None]) -> PartitionSpec:
  """Maps the logical axis names of one array to mesh axes."""
  return PartitionSpec(*(name and RULES[name] for name in names))


def served(
    names: Sequence[str | None], spread: bool
) -> tuple[str | None, ...]:
  """Returns the logical axes of a weight as sampling reads it.

  Args:
    names: of the weight.
    spread: as it is trained; otherwise whole over the axis fsdp.
  """
  return tuple(
      None if name == "embed" and not spread else name for name in names
  )


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
    ValueError: when a dimension does not divide over its mesh axis; it names
      the nearest mesh of as many devices that fits.
  """
  divisors = dict.fromkeys(MESH_AXES, 0)  # gcd(0, n) = n.
  odd = []

  def place(path, names, array):
    spec = partition_spec(names)
    for size, name, axis in zip(array.shape, names, spec, strict=True):
      if axis is None:
        continue
      divisors[axis] = math.gcd(divisors[axis], size)
      if size % mesh.shape[axis]:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        odd.append(
            f"mesh: {where} has {size} {name}, expected a multiple of "
            f"{axis}={mesh.shape[axis]}"
        )
    return NamedSharding(mesh, spec)

  placed = jax.tree_util.tree_map_with_path(
      place, logical_axes, shapes, is_leaf=lambda x: isinstance(x, tuple)
  )
  if odd:
    raise ValueError(
        f"{odd[0]}; the nearest mesh that divides the model is "
        f'"{nearest(mesh.shape, divisors)}".'
    )
  return placed


def nearest(
    shape: Mapping[str, int], divisors: Mapping[str, int]
) -> str:
  """Describes the mesh of as many devices that is most like another and fits.

  There is always one: no parameter lies over the axis data alone.

  Args:
    shape: sizes by axis of MESH_AXES.
    divisors: what the size of each axis must divide; 0 allows any.

  Returns:
    A line for `make_mesh`. Of those that fit, the one whose sizes differ by
    the smallest factors; of equal ones, that with the larger tensor axis.
  """
  devices = math.prod(shape.values())
  factors = [n for n in range(1, devices + 1) if devices % n == 0]

  def fits(sizes):
    found = zip(MESH_AXES, sizes, strict=True)
    return math.prod(sizes) == devices and not any(
        divisors[axis] % size for axis, size in found
    )

  def distance(sizes):
    wanted = (shape[axis] for axis in MESH_AXES)
    apart = sum(abs(math.log(x / y)) for x, y in zip(sizes, wanted))
    return round(apart, 9), -sizes[-1]

  candidates = itertools.product(factors, repeat=len(MESH_AXES))
  best = min(filter(fits, candidates), key=distance)
  return ",".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, best))


def row_parts(mesh: Mesh) -> int:
  """Returns over how many parts the rows of a batch are spread."""
  return math.prod(mesh.shape[axis] for axis in RULES["batch"])


def check_rows(key: str, found: int, mesh: Mesh) -> None:
  """Refuses a number of rows that does not divide over a mesh.

  Args:
    key: of the configuration, which gives the number.
    found: its value.
    mesh: as made by make_mesh.

  Raises:
    ValueError: with the next multiple.
  """
  parts = row_parts(mesh)
  if found % parts:
    raise ValueError(
        f"{key}: expected a multiple of the mesh's data × fsdp = {parts},"
        f" found {found}; raise it to {-(-found // parts) * parts}."
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
  if mesh.empty or array.shape[0] % row_parts(mesh):
    return array
  return jax.lax.with_sharding_constraint(array, partition_spec(("batch",)))


def constrain(array: Array, names: Sequence[str | None]) -> Array:
  """Pins each axis to the mesh in context, if any, by its logical name.

  An axis that does not divide stays whole.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return array

  def fitting(size, axes):
    of_one = (axes,) if isinstance(axes, str) else axes or ()
    parts = math.prod(mesh.shape[axis] for axis in of_one)
    return None if size % parts else axes

  spec = partition_spec(names)
  fitted = (fitting(*pair) for pair in zip(array.shape, spec, strict=True))
  return jax.lax.with_sharding_constraint(array, PartitionSpec(*fitted))
