"""Parameters made where they lie: no device is given more than its own part.

Of files, this host reads what its devices hold, leaf by leaf; what is kept in
fewer bits than float32 is rounded leaf by leaf as well, so a float32 leaf is
all that there is of it beside what is kept.
"""

from collections.abc import Callable, Mapping
import functools

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.models import frozen
from jaxrl_llm.models import weight_layout
from jaxrl_llm.models import weight_source

Array = types.Array
PyTree = types.PyTree


def read(
    source: weight_source.Source, places: PyTree
) -> dict[str, Callable[[], Array]]:
  """Returns what reads each leaf of the masters, by slash-separated path.

  Args:
    source: weights in files.
    places: shardings of the masters.
  """
  return {
      leaf: functools.partial(
          _spread, source, leaf, weight_layout.leaf_of(places, leaf)
      )
      for leaf in source.shapes
  }


def draw(
    init: Callable[[Array], PyTree], key: Array, places: PyTree
) -> PyTree:
  """Draws parameters; the numbers are the same on any mesh.

  Args:
    init: makes them of a key.
    key: every host has the same.
    places: shardings of them.
  """

  def drawn(words):
    return init(jax.random.wrap_key_data(words))

  words = np.asarray(jax.random.key_data(key))
  return jax.jit(drawn, out_shardings=places)(words)


def taken_from(tree: PyTree) -> dict[str, Callable[[], Array]]:
  """Returns what takes each leaf out of a tree, which is emptied by it."""
  groups = {"layers/": tree.pop("layers"), "": tree}
  return {
      prefix + name: functools.partial(group.pop, name)
      for prefix, group in groups.items()
      for name in group
  }


def masters(leaves: Mapping[str, Callable[[], Array]]) -> PyTree:
  """Assembles the tree of float32 masters."""
  return weight_source.tree_of({leaf: make() for leaf, make in leaves.items()})


def freeze(
    leaves: Mapping[str, Callable[[], Array]], storage: str, places: PyTree
) -> PyTree:
  """Assembles a frozen tree (see frozen.py), one leaf after the other.

  Args:
    leaves: what makes each leaf of the masters.
    storage: bfloat16 or int8.
    places: shardings of the frozen tree.
  """
  tied, made = "head" not in leaves, {"layers": {}}
  for leaf, make in leaves.items():
    name = leaf.rpartition("/")[2]
    inner = leaf.startswith("layers/")
    group, at = (x["layers"] if inner else x for x in (made, places))
    if name in weight_layout.VECTORS:
      group[name] = make()
      continue
    convert = functools.partial(
        frozen.freeze_leaf, name, storage=storage, tied=tied
    )
    values = make()
    kept = jax.eval_shape(convert, values)
    convert = jax.jit(convert, out_shardings={key: at[key] for key in kept})
    # Waits, so that no second float32 leaf is made meanwhile.
    group |= jax.block_until_ready(convert(values))
    del values
  return made


def _spread(
    source: weight_source.Source, leaf: str, place: jax.sharding.Sharding
) -> Array:
  """Reads the parts of a leaf that this host's devices hold, each once."""
  shape = source.shapes[leaf]
  found = place.addressable_devices_indices_map(shape)
  bounds = {
      device: tuple(part.indices(size)[:2] for part, size in zip(index, shape))
      for device, index in found.items()
  }
  distinct = list(dict.fromkeys(bounds.values()))
  indices = [tuple(slice(*ends) for ends in index) for index in distinct]
  parts = dict(zip(distinct, source.parts(leaf, indices)))
  return jax.make_array_from_single_device_arrays(
      shape,
      place,
      [jax.device_put(parts[at], device) for device, at in bounds.items()],
  )
