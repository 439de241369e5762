"""sharding.py: meshes by name, and the same numbers on one device and eight."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import presets
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding

POLICY = policy_lib.Policy(presets.preset("tiny"), "float32")


@pytest.mark.parametrize(
    "text, word",
    [("model=2", "model=2"), ("data=0", "data=0"), ("fsdp", "fsdp"),
     ("data=²", "data=²"), ("data=1,data=1", "at most once"),
     ("data=4096", "needs 4096 devices")],
)
def test_a_mesh_that_cannot_be_is_refused(text, word):
  with pytest.raises(ValueError, match=word):
    sharding.make_mesh(text)


@pytest.mark.parametrize(
    "sizes, divisors, expected",
    [
        # 4 heads: half of tensor=8 goes to fsdp, as near as to data, and
        # before it in order.
        ((1, 1, 8), (0, 64, 4), "data=1,fsdp=2,tensor=4"),
        # Widths of 6: of fsdp 1, 2, 3 and 6, with 8 devices 2 is left; what
        # is over goes to tensor, which is preferred.
        ((1, 4, 2), (0, 6, 4), "data=1,fsdp=2,tensor=4"),
        # Neither fits: data always does.
        ((1, 5, 1), (0, 4, 4), "data=5,fsdp=1,tensor=1"),
        ((2, 2, 2), (0, 4, 4), "data=2,fsdp=2,tensor=2"),
    ],
)
def test_the_nearest_mesh_that_fits(sizes, divisors, expected):
  named = lambda numbers: dict(zip(sharding.MESH_AXES, numbers))
  assert sharding.nearest(named(sizes), named(divisors)) == expected


def test_axes_and_shapes_match_the_parameters():
  params = POLICY.init(jax.random.key(0))
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(
      lambda x: x.shape, POLICY.shapes
  )
  assert POLICY.logical_axes["layers"]["output"] == (
      "layers", "heads", "head_dim", "embed"
  )
  mesh = sharding.make_mesh("data=1")
  placed = sharding.shardings(mesh, POLICY.logical_axes, params)
  assert jax.tree.structure(placed) == jax.tree.structure(params)


def _gradient(params, tokens):
  """Mean log-prob of packed rows and its gradient."""
  segment_ids = jnp.broadcast_to(jnp.arange(16) // 9 + 1, tokens.shape)
  positions = jnp.broadcast_to(jnp.arange(16) % 9, tokens.shape)
  ones = jnp.ones(tokens.shape)

  def loss(params):
    return jnp.mean(
        POLICY.token_logprobs(
            params, tokens, segment_ids, segment_ids, positions, ones
        ).logprobs
    )

  return jax.value_and_grad(loss)(params)


def eight_devices():
  """Runs in a process of its own: no device is left out, none disagrees."""
  mesh = sharding.make_mesh("data=2,fsdp=2,tensor=2")
  params = POLICY.init(jax.random.key(0))
  tokens = jax.random.randint(jax.random.key(1), (4, 16), 0, 257)
  expected = jax.jit(_gradient)(params, tokens)
  placed = sharding.shardings(mesh, POLICY.logical_axes, POLICY.shapes)
  with jax.set_mesh(mesh):
    drawn = jax.jit(POLICY.init, out_shardings=placed)(jax.random.key(0))
    # Compiled and eager arithmetic of the same draws differ by one rounding.
    for ours, theirs in zip(
        jax.tree.leaves(drawn), jax.tree.leaves(params), strict=True
    ):
      np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    step = jax.jit(
        _gradient,
        in_shardings=(placed, sharding.rows(mesh)),
        out_shardings=(sharding.replicated(mesh), placed),
    )
    found = step(drawn, jax.device_put(tokens, sharding.rows(mesh)))
  gate = found[1]["layers"]["gate"]
  assert {x.data.shape for x in gate.addressable_shards} == {(2, 32, 64)}
  for ours, theirs in zip(
      jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert error <= 1e-5, error
  try:
    sharding.shardings(
        sharding.make_mesh("tensor=8"), POLICY.logical_axes, POLICY.shapes
    )
  except ValueError as error:
    assert "heads" in str(error) and "tensor=8" in str(error), error
    # 2 kv_heads: the other factor of 4 goes to the widths.
    assert '"data=1,fsdp=4,tensor=2"' in str(error), error
  else:
    raise AssertionError("4 heads cannot lie on 8 devices")


def test_eight_devices_agree_with_one():
  flags = os.environ.get("XLA_FLAGS", "")
  environment = os.environ | {
      "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8",
      "JAX_PLATFORMS": "cpu",
      "PYTHONPATH": os.pathsep.join(sys.path),
  }
  done = subprocess.run(
      [sys.executable, __file__], env=environment, capture_output=True,
      text=True, timeout=1200,
  )
  assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
  eight_devices()
