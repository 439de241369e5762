"""attention_tpu.py, interpreted on CPUs, against attention.py.

Nothing here runs on a TPU. What its compiler says is asked where it is.
"""

import functools
import importlib.util
import itertools
import os
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import platforms
from jaxrl_llm.models import attention
from jaxrl_llm.models import attention_grid
from jaxrl_llm.models import attention_kernels
from jaxrl_llm.models import attention_tpu
from jaxrl_llm.models import scores as scores_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.slices import chips

WIDTH = 16
CAPPED, WINDOW = scores_lib.Rule(0.9, 1.5), 7
# Blocks of at most 32 tokens, of 16 where four heads are a group.
small_blocks = functools.partial(
    mock.patch.multiple, attention_tpu, _LANES=16, _KEYS=32, _QUERIES=64
)


def packed(tokens, seed, rows=2):
  """Draws rows: prompts with some responses each, padding behind.

  Returns:
    Segments, parents and positions, int32 [B, T].
  """
  draw = np.random.default_rng(seed)
  made = np.zeros((3, rows, tokens), np.int32)
  for row in range(rows):
    start, number, prompt, before = 0, 0, 0, 0
    end = tokens - int(draw.integers(1, tokens // 6))
    while start < end:
      number += 1
      length = min(int(draw.integers(1, tokens // 4)), end - start)
      if number == 1 or draw.random() < 0.3:
        prompt, before, first = number, length, 0
      else:
        first = before
      here = slice(start, start + length)
      made[0, row, here], made[1, row, here] = number, prompt
      made[2, row, here] = first + np.arange(length)
      start += length
  return tuple(map(jnp.asarray, made))


def results(kernels, ids, heads, dtype=jnp.float32, capped=False):
  """Returns outputs and gradients; zero where there is padding."""
  rows, tokens = ids[0].shape
  shapes = [(rows, tokens, n, WIDTH) for n in (heads[0], *heads[1:] * 2)]
  keys = jax.random.split(jax.random.key(1), 4)
  inputs = [jax.random.normal(*x) for x in zip(keys, shapes)]
  real = (ids[0] > 0)[:, :, None, None]
  cotangent = jax.random.normal(keys[3], shapes[0]) * real
  options = {}
  if capped:
    window = jnp.int32(WINDOW)
    options = {"rule": CAPPED, "positions": ids[2], "window": window}

  def run(*inputs):
    outputs, pull = jax.vjp(
        lambda *x: attention.causal(*x, *ids[:2], dtype, **options), *inputs
    )
    return outputs * real, *pull(cotangent)

  with mock.patch.object(attention_tpu, "pays", return_value=kernels):
    return jax.jit(run)(*inputs)


def errors(found, expected):
  """Returns the largest error of each array, as a share of its largest."""
  return [
      np.max(np.abs(x - y)) / np.max(np.abs(y))
      for x, y in zip(found, expected, strict=True)
  ]


@pytest.mark.parametrize(
    "tokens, heads, capped",
    [
        (32, (2, 2), False),  # One block, no groups.
        (23, (3, 1), True),  # Two blocks of 16, the last not full.
        (96, (4, 2), True),  # Three blocks of 32.
        (121, (4, 2), False),  # Four, the last not full.
        (50, (4, 1), False),  # Four of 16, for four heads a group.
    ],
)
def test_kernels_equal_the_sums_over_pairs(tokens, heads, capped):
  ids = packed(tokens, seed=tokens)
  with small_blocks():
    found, expected = (
        results(kernels, ids, heads, capped=capped)
        for kernels in (True, False)
    )
  assert np.max(errors(found, expected)) <= 1e-5


def test_in_bfloat16_kernels_are_as_exact_as_the_sums_over_pairs():
  ids = packed(96, seed=5)
  exact = results(False, ids, (4, 2))
  with small_blocks(), mock.patch.object(attention, "BLOCK", 32):
    found, pairs = (
        results(x, ids, (4, 2), jnp.bfloat16) for x in (True, False)
    )
  for ours, theirs in zip(errors(found, exact), errors(pairs, exact)):
    assert 1e-4 < ours <= 1.5 * theirs <= 0.03, (ours, theirs)


def test_no_pair_that_is_read_is_passed_over_and_many_are():
  rows, tokens, block = 6, 512, 16
  segments, parents, _ = packed(tokens, seed=3, rows=rows)
  work = attention_kernels.Work(
      rows, 1, 1, tokens, WIDTH, block, jnp.float32, CAPPED, False
  )
  seen = np.asarray(attention_grid.seen(work, ((segments, parents), None)))
  own, parent = (np.asarray(x)[:, :, None] for x in (segments, parents))
  keys = np.asarray(segments)[:, None, :]
  readable = ((own == keys) | (parent == keys)) & np.tri(tokens, dtype=bool)
  blocks = tokens // block
  split = np.reshape(readable, (rows, blocks, block, blocks, block))
  exact = np.any(split, axis=(2, 4))
  exact = np.stack([exact[:, query, key] for query, key in work.pairs], 1)
  assert not np.any(exact & ~seen)
  # Of these rows, 36% of the pairs are read and 42% are said to be.
  assert np.mean(exact) < np.mean(seen) < 0.45


def test_what_a_kernel_computes_and_moves_is_said_to_the_compiler():
  """Two key heads of groups of 3; two blocks of 32 tokens, so three pairs."""
  work = attention_kernels.Work(
      1, 2, 3, 64, WIDTH, 32, jnp.bfloat16, CAPPED, False
  )
  made = jax.ShapeDtypeStruct
  ids = made((1, 2, 64), jnp.int32)
  found = attention_grid.cost(
      work,
      (
          (ids, "query_ids"),  # 512 bytes for each head.
          (ids, "key_ids"),  # Likewise, three blocks where there are two.
          (made((1, 2, 3, 64, WIDTH), jnp.bfloat16), "queries"),
          (made((1, 2, 64, WIDTH), jnp.bfloat16), "keys"),  # So here.
      ),
      products=2,
  )
  assert found.bytes_accessed == 1024 + 1536 + 12288 + 6144
  assert found.transcendentals == 2 * 3 * 3 * 32**2
  assert found.flops == 2 * (2 * 3 * 3 * 32**2) * 2 * WIDTH


def test_blocks_cover_a_row_and_fill_registers():
  for tokens, group in itertools.product((1, 128, 640, 4096, 9000), (1, 5, 32)):
    block = attention_tpu.block_of(tokens, group)
    assert block % 128 == 0 and block <= 512
    assert block == 128 or block * group <= 2048
  # 640 tokens: two blocks of 384, not of 512.
  assert attention_tpu.block_of(640, 4) == 384


@pytest.mark.parametrize(
    "platform, rows, tokens, key_heads, width, expected",
    [
        ("tpu", 4, 4096, 2, 128, True),
        ("cpu", 4, 4096, 2, 128, False),
        ("gpu", 4, 4096, 2, 128, False),
        ("tpu", 4, 64, 2, 128, False),
        ("tpu", 4, 2**16, 2, 128, False),  # Gradients of 64 MiB a head.
        ("tpu", 3, 4096, 2, 128, False),  # Four parts of the rows,
        ("tpu", 4, 4096, 3, 128, False),  # two of the heads.
    ],
)
def test_kernels_run_on_tpus_where_they_pay_and_rows_and_heads_divide(
    platform, rows, tokens, key_heads, width, expected
):
  mesh = jax.sharding.AbstractMesh(
      (2, 2, 2),
      sharding.MESH_AXES,
      axis_types=(jax.sharding.AxisType.Auto,) * 3,
  )
  shape = lambda heads: jax.ShapeDtypeStruct(
      (rows, tokens, heads, width), jnp.float32
  )
  arrays = shape(6 * key_heads), shape(key_heads)
  with mock.patch.object(platforms, "current", return_value=platform):
    with jax.sharding.use_abstract_mesh(mesh):
      assert attention_tpu.pays(*arrays) == expected
    # Without a mesh, any rows and heads are whole.
    undivided = (rows, key_heads) != (4, 2)
    assert attention_tpu.pays(*arrays) == (expected or undivided)


def test_the_plain_twin_never_runs_kernels():
  inputs = [jnp.ones((1, 64, 2, WIDTH))] * 3
  ids = jnp.ones((1, 64), jnp.int32)
  made = lambda plain: str(jax.make_jaxpr(
      lambda *x: attention.causal(*x, ids, ids, jnp.float32, plain)
  )(*inputs))
  with mock.patch.object(attention_tpu, "pays", return_value=True):
    assert "pallas_call" in made(False) and "pallas_call" not in made(True)


def compiled_for_tpu():
  """Runs in a process of its own: libtpu is loaded once."""
  mesh = sharding.make_mesh("fsdp=2,tensor=2", chips.devices("v5e:2x2"))
  spread = jax.NamedSharding(mesh, sharding.partition_spec(("batch",)))
  whole = sharding.replicated(mesh)

  def made(dtype, *axes):
    return jax.ShapeDtypeStruct((2, 700, *axes), dtype, sharding=spread)

  def step(dtype, rule, queries, keys, values, ids, window):
    """Two layers, recomputed, as the model has them."""

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def layer(queries, _):
      return queries + attention.causal(
          queries, keys, values, ids, ids, dtype,
          rule=rule, positions=ids, window=window,
      ), None

    return jnp.sum(jax.lax.scan(layer, queries, length=2)[0] ** 2)

  for dtype, rule in (
      (jnp.bfloat16, CAPPED), (jnp.float32, scores_lib.Rule())
  ):
    with jax.set_mesh(mesh):
      text = jax.jit(
          jax.grad(functools.partial(step, dtype, rule), (0, 1, 2))
      ).lower(
          made(jnp.float32, 8, 80),
          *[made(jnp.float32, 2, 80)] * 2,
          made(jnp.int32),
          jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
      ).compile().as_text()
    # Forward, recomputed, and backward.
    assert text.count('custom_call_target="tpu_custom_call"') == 3


def eight_devices():
  """Runs in a process of its own."""
  ids, heads = packed(40, seed=8, rows=4), (4, 2)
  expected = results(True, ids, heads, capped=True)
  with small_blocks():
    with jax.set_mesh(sharding.make_mesh("data=2,fsdp=2,tensor=2")):
      found = results(True, ids, heads, capped=True)
  assert np.max(errors(found, expected)) <= 1e-5
  # Four parts of the rows, two of the heads: nothing was gathered.
  for array, count in zip(found, (2, 2, 1, 1), strict=True):
    assert {x.data.shape for x in array.addressable_shards} == {
        (1, 40, count, WIDTH)
    }, array.sharding


def own_process(action, **variables):
  done = subprocess.run(
      [sys.executable, __file__, action],
      env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables,
      capture_output=True, text=True, timeout=600,
  )
  assert done.returncode == 0, done.stderr[-2000:]


def test_eight_devices_agree_with_one():
  flags = os.environ.get("XLA_FLAGS", "")
  own_process(
      "devices",
      XLA_FLAGS=f"{flags} --xla_force_host_platform_device_count=8",
      JAX_PLATFORMS="cpu",
  )


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler for TPUs, is not installed",
)
def test_the_compiler_for_tpus_takes_the_kernels():
  own_process("compiled", JAX_PLATFORMS="cpu")


if __name__ == "__main__":
  {"devices": eight_devices, "compiled": compiled_for_tpu}[sys.argv[1]]()
