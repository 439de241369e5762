"""Which kind of device runs what is being traced."""

import jax


def current() -> str:
  """Returns cpu, gpu or tpu: that of the mesh in context, else JAX's own.

  So a program that is compiled for a slice on a machine without one is the
  program that the slice would make itself.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform
