"""matmul.py against float32 arithmetic and against each other."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import matmul

KEYS = jax.random.split(jax.random.key(0), 4)
INPUTS = jax.random.normal(KEYS[0], (7, 5))
MASTER = jax.random.normal(KEYS[1], (5, 6))
COTANGENT = jax.random.normal(KEYS[2], (7, 6))


def _rounded(values, dtype):
  return values.astype(dtype).astype(jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_product_rounds_its_operands_and_nothing_else(dtype):
  """Value and gradients are float32 products of rounded operands."""
  bits = matmul.to_bits(MASTER.astype(dtype))
  outputs, pull = jax.vjp(
      lambda x, w: matmul.product(x, bits, w), INPUTS, MASTER
  )
  to_inputs, to_master = pull(COTANGENT)
  x, w, g = (_rounded(v, dtype) for v in (INPUTS, MASTER, COTANGENT))
  for found, expected in (
      (outputs, x @ w), (to_inputs, g @ w.T), (to_master, x.T @ g)
  ):
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
  # The weight's gradient is not rounded on its way out.
  if dtype == jnp.bfloat16:
    assert np.any(np.asarray(to_master != _rounded(to_master, dtype)))


def test_plain_twin_has_the_same_value_and_a_forward_derivative():
  """jvp of the twin equals the vjp of the product, paired with a tangent."""
  tangents = (jnp.ones_like(INPUTS), jnp.ones_like(MASTER))
  value, forward = jax.jvp(
      lambda x, w: matmul.plain_product(x, w, w), (INPUTS, MASTER), tangents
  )
  same, pull = jax.vjp(
      lambda x, w: matmul.product(x, w, w), INPUTS, MASTER
  )
  np.testing.assert_array_equal(value, same)
  paired = sum(
      jnp.vdot(g, t) for g, t in zip(pull(COTANGENT), tangents, strict=True)
  )
  np.testing.assert_allclose(jnp.vdot(forward, COTANGENT), paired, rtol=1e-5)


def test_bits_come_back_exactly_and_only_bfloat16_becomes_bits():
  values = INPUTS.astype(jnp.bfloat16)
  bits = matmul.to_bits(values)
  assert bits.dtype == jnp.uint16
  np.testing.assert_array_equal(matmul.from_bits(bits), values)
  assert matmul.to_bits(INPUTS) is INPUTS
  assert matmul.from_bits(INPUTS) is INPUTS


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_outer_sums_over_rows(dtype):
  left, right = INPUTS.astype(dtype), COTANGENT.astype(dtype)
  expected = np.zeros((5, 6), np.float64)
  for row in range(7):
    expected += np.outer(
        np.asarray(left[row], np.float64), np.asarray(right[row], np.float64)
    )
  np.testing.assert_allclose(matmul.outer(left, right), expected, atol=1e-5)


def test_products_stay_bfloat16_on_this_backend():
  """No operand is widened: a float32 product costs twice as much on a CPU."""
  bits = jnp.zeros((256, 384), jnp.uint16)

  def both(inputs, cotangent):
    outputs, pull = jax.vjp(
        lambda x, w: matmul.product(x, bits, w), inputs, jnp.zeros(bits.shape)
    )
    return outputs, pull(cotangent)

  shapes = [jax.ShapeDtypeStruct((512, n), jnp.float32) for n in (256, 384)]
  text = jax.jit(both).lower(*shapes).compile().as_text()
  assert re.search(r"= bf16\[512,\d+\]\S* convert\(", text)
  assert not re.search(r"= f32\[\d+,\d+\]\S* convert\(", text)


def test_round_through_rounds_and_passes_derivatives():
  value, tangent = jax.jvp(
      lambda x: matmul.round_through(x, jnp.bfloat16), (MASTER,), (MASTER,)
  )
  np.testing.assert_array_equal(value, _rounded(MASTER, jnp.bfloat16))
  np.testing.assert_array_equal(tangent, MASTER)
