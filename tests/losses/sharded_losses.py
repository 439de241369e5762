"""Checks on eight devices; sharding_test.py runs it in its own process.

Loss, gradient and metrics of every algorithm over rows that lie on eight
devices are those of one device.
"""

import functools

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms

ROWS, WIDTH = 8, 8


@functools.partial(jax.jit, static_argnums=0)
def evaluate(spec, batch):
  """Returns the output and the gradient of a mini-batch in one piece."""
  output = loss_batches.full_output(spec, batch)
  (loss, _), gradient = loss_batches.loss_and_gradient(spec, batch)
  return output, loss, gradient


def spread(batch, mesh):
  """Lays the rows over the devices; keys go everywhere."""
  def place(array):
    rows = array.ndim > 1
    axes = jax.sharding.PartitionSpec("data" if rows else None)
    if not array.ndim:
      axes = jax.sharding.PartitionSpec()
    return jax.device_put(array, jax.sharding.NamedSharding(mesh, axes))

  return jax.tree.map(place, batch)


def check(name, mesh):
  spec = algorithms.build(loss_batches.overrides(name))
  sequences = loss_batches.sequences(2, count=ROWS, longest=WIDTH)
  batch = loss_batches.pack(
      spec, [[s] for s in sequences], WIDTH, key=jax.random.key(0)
  )
  sharded = spread(batch, mesh)
  assert len(sharded.logprobs.sharding.device_set) == ROWS
  wanted = evaluate(spec, batch)
  found = evaluate(spec, sharded)
  np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12, err_msg=name)
  norm = jnp.linalg.norm(wanted[2])
  gap = jnp.linalg.norm(np.asarray(found[2]) - np.asarray(wanted[2]))
  assert 0 < norm and gap / norm < 1e-12, (name, float(gap / norm))
  metrics = types.finish_metrics(wanted[0].metrics)
  for key, value in types.finish_metrics(found[0].metrics).items():
    np.testing.assert_allclose(value, metrics[key], rtol=2e-5, atol=1e-6)


def main():
  assert jax.device_count() == ROWS
  mesh = jax.make_mesh(
      (ROWS,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  with jax.enable_x64(True):
    for name in algorithms.REGISTRY:
      check(name, mesh)
  print(f"{len(algorithms.REGISTRY)} algorithms")


if __name__ == "__main__":
  main()
