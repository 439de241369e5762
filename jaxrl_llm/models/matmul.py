"""The product of activations and weights that the whole model shares.

Inputs are rounded to the compute dtype, sums are kept in float32. The
derivative of such a product, left to JAX, takes the float32 cotangent and so
runs as a float32 product; here the cotangent is rounded too, forward and
backward cost the same, and the weight's gradient leaves in float32.
"""

import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import types

Array = types.Array


def sum_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Returns the dtype that sums of `dtype` products are kept in."""
  return jnp.promote_types(dtype, jnp.float32)


def einsum(spec: str, left: Array, right: Array) -> Array:
  """Multiplies two arrays of one compute dtype with sums in float32.

  Args:
    spec: einsum of two operands.
    left: bfloat16, float32 or float64; float32 is multiplied exactly, never
      in a shorter format.
    right: the same dtype.

  Returns:
    float32 (float64 of float64).
  """
  return jnp.einsum(
      spec,
      left,
      right,
      precision=jax.lax.Precision.HIGHEST,
      preferred_element_type=sum_dtype(left.dtype),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(spec: str, inputs: Array, weight: Array, master: Array) -> Array:
  """Multiplies activations with a weight kept in two precisions.

  Args:
    spec: einsum "inputs,weight->outputs" in which each letter appears in two
      of the three places.
    inputs: float32 activations (float64 where the compute dtype is).
    weight: the rounded copy that is multiplied; its dtype is the compute
      dtype. It receives no gradient.
    master: the weight that `weight` was rounded from, of the dtype of
      `inputs`. It is not read; it receives the gradient, unrounded.

  Returns:
    float32 outputs.
  """
  del master
  return einsum(spec, inputs.astype(weight.dtype), weight)


def _product_fwd(spec, inputs, weight, master):
  del master
  rounded = inputs.astype(weight.dtype)
  return einsum(spec, rounded, weight), (rounded, weight)


def _product_bwd(spec, residuals, cotangent):
  inputs, weight = residuals
  operands, out = spec.split("->")
  left, right = operands.split(",")
  cotangent = cotangent.astype(weight.dtype)
  to_inputs = einsum(f"{out},{right}->{left}", cotangent, weight)
  to_master = einsum(f"{left},{out}->{right}", inputs, cotangent)
  return to_inputs, None, to_master


product.defvjp(_product_fwd, _product_bwd)


def plain_product(
    spec: str, inputs: Array, weight: Array, master: Array
) -> Array:
  """Does what `product` does, differentiable forward (jax.jvp) as well."""
  rounded = round_through(master, weight.dtype).astype(weight.dtype)
  return einsum(spec, inputs.astype(weight.dtype), rounded)


def round_through(values: Array, dtype: jnp.dtype) -> Array:
  """Rounds to `dtype` and back; the derivative is that of the identity."""
  rounded = values.astype(dtype).astype(values.dtype)
  return values + jax.lax.stop_gradient(rounded - values)
