"""products.py: FLOPs of small programs, counted by hand."""

from unittest import mock

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import pytest

from jaxrl_llm.models import attention
from jaxrl_llm.models import attention_tpu
from jaxrl_llm.slices import products

A, B = jnp.ones((3, 4)), jnp.ones((4, 5))
ONE = 2 * 3 * 4 * 5


def count(function, *arguments, turns=1):
  return products.flops(jax.jit(function).trace(*arguments).jaxpr, turns)


def scanned(a, b):
  return jax.lax.scan(lambda c, _: (c, a @ b), 0.0, length=7)[1]


def endless(a, b):
  return jax.lax.while_loop(
      lambda c: c[0, 0] < 3, lambda c: c + jnp.sum(a @ b), a
  )


def branched(a, b):
  return jax.lax.cond(
      a[0, 0] > 0, lambda: a @ b, lambda: (a @ b) + (a @ (2 * b))
  )


@pytest.mark.parametrize(
    "function, factor",
    [
        (lambda a, b: a @ b, 1),
        (lambda a, b: jax.jit(lambda: a @ b)() + a @ b, 2),
        (scanned, 7),
        (endless, 11),
        (branched, 2),  # The longer branch.
        # Forward, and two products for the two gradients.
        (jax.grad(lambda a, b: jnp.sum(jnp.sin(a @ b)), (0, 1)), 3),
        # Recomputed: once more.
        (
            jax.grad(
                lambda a, b: jnp.sum(
                    jax.checkpoint(lambda a, b: jnp.sin(a @ b))(a, b)
                ),
                (0, 1),
            ),
            4,
        ),
    ],
)
def test_products_count_as_often_as_they_run(function, factor):
  assert count(function, A, B, turns=11) == factor * ONE


def test_batched_products_share_their_batch_axis():
  left, right = jnp.ones((6, 3, 4)), jnp.ones((6, 4, 5))
  found = count(lambda a, b: jnp.einsum("nij,njk->nik", a, b), left, right)
  assert found == 6 * ONE


def test_devices_of_a_shard_map_count_together():
  mesh = jax.sharding.AbstractMesh(
      (4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  rows, whole = (jax.sharding.PartitionSpec(*x) for x in (("rows",), ()))
  shared = jax.shard_map(
      lambda a, b: a @ b, mesh=mesh, in_specs=(rows, whole), out_specs=rows
  )
  # Four products of [2, 4] and [4, 5].
  assert count(shared, jnp.ones((8, 4)), B) == 4 * 2 * 2 * 4 * 5


def test_a_kernel_counts_at_every_step_of_its_grid():
  """Three rows of blocks by seven; half of the steps may be passed over."""

  def multiply(left, right, outputs):
    @pl.when(pl.program_id(1) < 4)
    def _():
      outputs[...] = left[...] @ right[...]

  whole = lambda x: pl.BlockSpec(x.shape, lambda i, j: (0, 0))
  kernel = pl.pallas_call(
      multiply,
      grid=(3, 7),
      in_specs=(whole(A), whole(B)),
      out_specs=pl.BlockSpec((3, 5), lambda i, j: (0, 0)),
      out_shape=jax.ShapeDtypeStruct((3, 5), A.dtype),
  )
  assert count(kernel, A, B) == 3 * 7 * ONE


def test_attention_by_kernels_counts_as_by_pairs():
  """Rows of 1,024 tokens: ten pairs of blocks of 256, or three of 512.

  Two products forward and five backward, of 2 · block² · H FLOPs each.
  """
  rows, heads, key_heads, width, tokens = 2, 4, 2, 16, 1024
  ids = jnp.ones((rows, tokens), jnp.int32)
  inputs = [
      jnp.ones((rows, tokens, n, width)) for n in (heads, key_heads, key_heads)
  ]
  for kernels, area in ((False, 10 * 256**2), (True, 3 * 512**2)):
    with mock.patch.object(attention_tpu, "pays", return_value=kernels):
      found = count(
          jax.grad(lambda *x: jnp.sum(attention.causal(
              *x, ids, ids, jnp.float32)), (0, 1, 2)),
          *inputs,
      )
    assert found == 7 * rows * heads * area * 2 * width
