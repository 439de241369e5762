"""Moves whole arrays onto a mesh, back to a host, and between meshes.

With one process these are plain copies. With several, an array of the mesh of
all hosts is in nobody's hands: what every host holds goes up in parts, and
what one host needs whole comes down by a collective that all take part in.
"""

from collections.abc import Sequence
import math

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.models import sharding

PyTree = types.PyTree

# A mesh axis over the hosts: what lies over it not at all is whole on each.
_HOSTS = "hosts"


def put(tree: PyTree, places: PyTree) -> PyTree:
  """Lays arrays out; of those of a host, every host holds the same.

  Args:
    tree: of numpy or JAX arrays.
    places: shardings, a prefix of the tree.
  """

  def place(at, part):
    return jax.tree.map(lambda array: _put(array, at), part)

  is_place = lambda x: isinstance(x, jax.sharding.Sharding)
  return jax.tree.map(place, places, tree, is_leaf=is_place)


def _put(array, at):
  local = not isinstance(array, jax.Array) or array.is_fully_addressable
  if at.is_fully_addressable or not local:
    return jax.device_put(array, at)
  array = np.asarray(array)
  return jax.make_array_from_callback(
      array.shape, at, lambda index: array[index]
  )


def whole(array: types.Array) -> np.ndarray:
  """Brings an array to this host, a collective where it lies over several."""
  lacking = (
      isinstance(array, jax.Array)
      and not array.is_fully_addressable
      and not array.is_fully_replicated
  )
  if lacking:
    everywhere = sharding.replicated(array.sharding.mesh)
    array = jax.jit(lambda x: x, out_shardings=everywhere)(array)
  return np.asarray(array)


def of_this_host(mesh: Mesh) -> Mesh:
  """Returns the mesh of this process's devices; with one process, the given.

  Axes keep their sizes from the last on, as far as the devices go: a host has
  a part of the rows, and whole weights.
  """
  if jax.process_count() == 1:
    return mesh
  return Mesh(
      np.array(jax.local_devices()).reshape(_sizes_here(mesh)),
      sharding.MESH_AXES,
      axis_types=(AxisType.Auto,) * len(sharding.MESH_AXES),
  )


def _sizes_here(mesh: Mesh) -> Sequence[int]:
  left, sizes = jax.local_device_count(), []
  for axis in reversed(sharding.MESH_AXES):
    sizes.insert(0, math.gcd(mesh.shape[axis], left))
    left //= sizes[0]
  return (sizes[0] * left, *sizes[1:])


def copy_here(params: PyTree, logical_axes: PyTree, mesh: Mesh) -> PyTree:
  """Copies parameters from the mesh of all hosts to that of this one.

  Args:
    params: on `mesh`; with one process they are returned as they are.
    logical_axes: `Policy.logical_axes`.
    mesh: of all devices.
  """
  if jax.process_count() == 1:
    return params
  devices = sorted(jax.devices(), key=lambda x: (x.process_index, x.id))
  axes = (_HOSTS, *sharding.MESH_AXES)
  by_host = Mesh(
      np.array(devices).reshape((jax.process_count(), *_sizes_here(mesh))),
      axes,
      axis_types=(AxisType.Auto,) * len(axes),
  )
  here = of_this_host(mesh)

  def copy(names, array):
    spec = sharding.partition_spec(names)
    spread = _put(array, NamedSharding(by_host, spec))
    return jax.make_array_from_single_device_arrays(
        array.shape,
        NamedSharding(here, spec),
        [shard.data for shard in spread.addressable_shards],
    )

  return jax.tree.map(
      copy, logical_axes, params, is_leaf=lambda x: isinstance(x, tuple)
  )
