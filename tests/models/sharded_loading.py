"""Checks on eight devices; loading_test.py runs it in its own process.

  python sharded_loading.py FOLDER

What is read onto a mesh, or drawn there, is what one device holds of the
whole, to the bit; and while files are read, no device has more than its share
of what is kept and of one leaf in float32.
"""

import collections
import dataclasses
import math
import pathlib
import sys

import jax
import numpy as np

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.models import weights

# Every axis of it divides by 8; wide enough that no leaf is most of it.
MODEL = config_lib.ModelConfig(
    vocab_size=128,
    width=64,
    layers=2,
    heads=16,
    kv_heads=8,
    head_dim=8,
    mlp_width=128,
    tied_embeddings=False,
    family="qwen2",
)
MESHES = ("data=1", "fsdp=4,tensor=2", "data=2,fsdp=2,tensor=2")
ADAPTED = {
    "lora_rank": 2, "lora_targets": "query", "lora_base_dtype": "int8"
}
# Each compiles for seconds.
CASES = [({}, mesh) for mesh in MESHES] + [(ADAPTED, MESHES[-1])]


def settings(**lora):
  return policy_lib.ModelSettings(
      path="", preset="tiny", tokenizer="", compute_dtype="float32",
      remat="none", **lora,
  )


def assert_same(found, wanted, where):
  pairs = zip(
      jax.tree_util.tree_leaves_with_path(found),
      jax.tree_util.tree_leaves_with_path(wanted),
      strict=True,
  )
  for (path, left), (other, right) in pairs:
    assert path == other and left.dtype == right.dtype, (where, path)
    np.testing.assert_array_equal(
        np.asarray(left), np.asarray(right), f"{where} {path}"
    )


def held(arrays):
  """Bytes by device."""
  counted = collections.Counter()
  for array in arrays:
    part = math.prod(array.sharding.shard_shape(array.shape))
    for device in array.sharding.device_set:
      counted[device] += part * array.dtype.itemsize
  return counted


def assert_places(params, policy, mesh):
  places = sharding.shardings(mesh, policy.logical_axes, policy.shapes)
  assert jax.tree.map(lambda leaf: leaf.sharding, params) == places
  assert held(jax.tree.leaves(params)) == dict.fromkeys(
      mesh.devices.flat, share(policy, mesh)
  )


def share(policy, mesh):
  """Bytes that each device keeps, by the shardings of the parameters."""
  places = sharding.shardings(mesh, policy.logical_axes, policy.shapes)
  return sum(
      math.prod(at.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf, at in zip(
          jax.tree.leaves(policy.shapes), jax.tree.leaves(places)
      )
  )


def largest_leaf(policy, mesh):
  """Bytes of the largest float32 leaf's part on a device."""
  whole = policy.without_adapters()
  places = sharding.shardings(mesh, whole.logical_axes, whole.shapes)
  return max(
      4 * math.prod(at.shard_shape(leaf.shape))
      for leaf, at in zip(
          jax.tree.leaves(whole.shapes), jax.tree.leaves(places)
      )
  )


def watched(source, policy, mesh, taken):
  """A source that looks at the devices at each read, and counts bytes."""
  most = share(policy, mesh) + largest_leaf(policy, mesh)
  before = held(jax.live_arrays())

  def read(tensor, index):
    array = source.read(tensor, index)
    taken[tensor.name] += array.size
    more = held(jax.live_arrays()) - before
    assert max(more.values(), default=0) <= most, (tensor.name, more, most)
    return array

  return dataclasses.replace(source, read=read)


def check_files(folder):
  plain = policy_lib.Policy(MODEL, "float32")
  policy_lib.save(folder, plain, plain.init(jax.random.key(1)), {})
  config, masters = weights.read(folder)
  masters = jax.tree.map(jax.numpy.asarray, masters)
  opened, open_model = weights.open_model(folder), weights.open_model
  total = sum(leaf.size for leaf in jax.tree.leaves(masters))
  for lora, text in CASES:
    policy = policy_lib.network(folder, settings(**lora))
    wanted = jax.device_get(policy.start(masters, jax.random.key(7)))
    mesh, taken = sharding.make_mesh(text), collections.Counter()
    source = watched(opened, policy, mesh, taken)
    weights.open_model = lambda path: source
    _, params = policy_lib.load(folder, settings(**lora), 7, mesh)
    weights.open_model = open_model
    assert_same(params, wanted, (lora, text))
    assert_places(params, policy, mesh)
    # Read once, whatever the number of devices that hold a part.
    assert sum(taken.values()) == total, (text, taken)
    del params
  kept = policy_lib.Policy(config).freeze(masters, "bfloat16")
  _, params = policy_lib.load(
      folder, settings(), mesh=mesh, storage="bfloat16"
  )
  assert_same(params, kept, "bfloat16")


def check_drawn():
  preset, policy_lib.preset = policy_lib.preset, lambda name: MODEL
  for lora, text in CASES[1:]:
    mesh = sharding.make_mesh(text)
    policy, params = policy_lib.load("", settings(**lora), 5, mesh)
    assert_same(params, policy.init(jax.random.key(5)), (lora, text))
    assert_places(params, policy, mesh)
  policy_lib.preset = preset


def main(root: pathlib.Path) -> None:
  assert jax.device_count() == 8
  check_files(root / "model")
  check_drawn()
  print(f"{len(MESHES)} meshes")


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
