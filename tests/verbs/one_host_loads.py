"""Loads a model as one of two hosts; loading_hosts_test.py starts both.

python one_host_loads.py HOST PORT

Each host reads what its own devices hold, and samples from the weights that
one host alone would have read.
"""

import collections
import dataclasses
import pathlib
import sys

import jax
import numpy as np

from configs import tiny
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.models import weights
from jaxrl_llm.rollout import engine
from jaxrl_llm.verbs import parts

MODEL = pathlib.Path(__file__).parents[1] / "golden/qwen2"
MESH = "fsdp=4"


def assert_same(found, wanted):
  pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
  for left, right in pairs:
    assert left.dtype == right.dtype and left.shape == right.shape
    for shard in left.addressable_shards:
      np.testing.assert_array_equal(
          np.asarray(shard.data), np.asarray(right)[shard.index]
      )


def counted(source, taken):

  def read(tensor, index):
    array = source.read(tensor, index)
    taken[tensor.leaf] += array.size
    return array

  return dataclasses.replace(source, read=read)


def check(**lora):
  settings = policy_lib.ModelSettings(
      path=str(MODEL), preset="", tokenizer="", compute_dtype="bfloat16",
      remat="none", **lora,
  )
  opened, taken = weights.open_model(MODEL), collections.Counter()
  masters = jax.tree.map(jax.numpy.asarray, opened.tree())
  open_model, weights.open_model = (
      weights.open_model, lambda path: counted(opened, taken)
  )
  mesh = sharding.make_mesh(MESH)
  policy, params = policy_lib.load(MODEL, settings, 3, mesh)
  weights.open_model = open_model
  # Two of four parts of what is spread, all of the norms and biases.
  for leaf, size in (("embedding", masters["embedding"].size),
                     ("layers/gate", masters["layers"]["gate"].size)):
    assert taken[leaf] == size // 2, (leaf, taken[leaf], size)
  norm = masters["layers"]["mlp_norm"]
  assert taken["layers/mlp_norm"] == norm.size
  alone = jax.jit(policy.start)(masters, jax.random.key(3))
  assert_same(params, alone)

  config = tiny.get_config()
  config.mesh = MESH
  copy = parts.generating_copy(config, policy, params)
  assert all(leaf.is_fully_addressable for leaf in jax.tree.leaves(copy))
  if not lora:  # Nothing of float32 but norms and biases has been moved.
    wide = [x.size for x in jax.tree.leaves(copy) if x.dtype == np.float32]
    assert max(wide) < masters["embedding"].size
  serving = engine.serving_copy(policy, alone, True)
  assert_same(engine.serving_copy(policy, copy, True), serving)


if __name__ == "__main__":
  jax.distributed.initialize(
      f"127.0.0.1:{sys.argv[2]}", 2, int(sys.argv[1])
  )
  assert jax.device_count() == 4 and jax.local_device_count() == 2
  check()
  check(lora_rank=2, lora_base_dtype="int8", lora_targets="query")
  print("loaded")
