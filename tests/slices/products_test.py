"""products.py: FLOPs of small programs, counted by hand."""

import jax
import jax.numpy as jnp
import pytest

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
