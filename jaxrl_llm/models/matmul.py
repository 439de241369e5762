"""The product of activations and weights that the whole model shares.

Inputs are rounded to the compute dtype, sums are kept in float32. The
derivative of such a product, left to JAX, takes the float32 cotangent and so
runs as a float32 product; here the cotangent is rounded too, forward and
backward cost the same, and the weight's gradient leaves in float32.
"""

import functools

import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from jaxrl_llm import types

Array = types.Array

# Name of the bits of `keep_rounded`, for jax.checkpoint.
KEPT = "rounded"


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


def turned_product(inputs: Array, weight: Array) -> Array:
  """Multiplies few rows with a weight that is stored [O, I].

  On CPUs the weight is the left operand, which is read as it lies: the right
  one is laid out anew at each product, and with few rows that costs as much
  as the product itself.

  Args:
    inputs: float32 [R, I].
    weight: compute dtype [O, I].

  Returns:
    float32 [R, O].
  """

  def from_left(inputs, weight):
    made = einsum("oi,ri->or", weight, inputs)
    # Without the barrier, XLA swaps the operands to save the transposition.
    return jax.lax.optimization_barrier(made[None])[0].T

  return jax.lax.platform_dependent(
      inputs.astype(weight.dtype),
      weight,
      cpu=from_left,
      default=functools.partial(einsum, "ri,oi->ro"),
  )


def outer(left: Array, right: Array) -> Array:
  """Sums outer products over rows: Σ_r left[r, i] · right[r, o].

  Args:
    left: compute dtype [R, I].
    right: the same dtype [R, O].

  Returns:
    float32 [I, O].
  """
  return einsum("ir,ro->io", row_major(left.T), right)


def row_major(turned: Array) -> Array:
  """Lays a transposed array out anew, where that pays.

  XLA on CPUs has a bfloat16 product only for operands in row-major order
  whose last axis is summed (of the right one, either); others become float32
  products at half the speed. The barrier keeps the transposition out of the
  product, the added axis makes its result row-major. Elsewhere nothing is
  done.
  """
  return jax.lax.platform_dependent(
      turned,
      cpu=lambda x: jax.lax.optimization_barrier(x[None])[0],
      default=lambda x: x,
  )


def to_bits(values: Array) -> Array:
  """Returns bfloat16 values as uint16 bits; other dtypes as they are."""
  if values.dtype == jnp.bfloat16:
    return jax.lax.bitcast_convert_type(values, jnp.uint16)
  return values


def from_bits(bits: Array) -> Array:
  """Undoes `to_bits`."""
  if bits.dtype == jnp.uint16:
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16)
  return bits


@jax.custom_vjp
def product(inputs: Array, bits: Array, master: Array) -> Array:
  """Multiplies activations with a weight kept in two precisions.

  Args:
    inputs: float32 [R, I] activations (float64 where the compute dtype is).
    bits: [I, O], the rounded weight that is multiplied, as `to_bits` gives
      it; its dtype is the compute dtype. It receives no gradient.
    master: [I, O], the weight that was rounded, of the dtype of `inputs`. It
      is not read; it receives the gradient, unrounded.

  Returns:
    float32 [R, O].
  """
  return _product_fwd(inputs, bits, master)[0]


def _product_fwd(inputs, bits, master):
  del master
  weight = from_bits(bits)
  rounded = inputs.astype(weight.dtype)
  return einsum("ri,io->ro", rounded, weight), (to_bits(rounded), bits)


def _product_bwd(residuals, cotangent):
  inputs, weight = map(from_bits, residuals)
  cotangent = cotangent.astype(weight.dtype)
  to_inputs = einsum("ro,io->ri", cotangent, weight)
  return to_inputs, None, outer(inputs, cotangent)


product.defvjp(_product_fwd, _product_bwd)


def plain_product(inputs: Array, bits: Array, master: Array) -> Array:
  """Does what `product` does, differentiable forward (jax.jvp) as well.

  Here `master` is the weight that is read; it may be bits itself.
  """
  dtype = from_bits(bits).dtype
  weight = round_through(from_bits(master), dtype).astype(dtype)
  return einsum("ri,io->ro", inputs.astype(dtype), weight)


def round_through(values: Array, dtype: jnp.dtype) -> Array:
  """Rounds to `dtype` and back; the derivative is that of the identity."""
  rounded = values.astype(dtype).astype(values.dtype)
  return values + jax.lax.stop_gradient(rounded - values)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def keep_rounded(values: Array, dtype: jnp.dtype) -> Array:
  """Does what `round_through` does, and names the bits KEPT.

  What keeps them for a backward pass has the values in half the memory. There
  is no forward derivative (jax.jvp).
  """
  return _keep_rounded_fwd(values, dtype)[0]


def _keep_rounded_fwd(values, dtype):
  bits = ad_checkpoint.checkpoint_name(to_bits(values.astype(dtype)), KEPT)
  return from_bits(bits).astype(values.dtype), None


def _keep_rounded_bwd(dtype, residuals, cotangent):
  del dtype, residuals
  return (cotangent,)


keep_rounded.defvjp(_keep_rounded_fwd, _keep_rounded_bwd)
