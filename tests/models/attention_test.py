"""attention.py against softmax written out in full."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import attention
from jaxrl_llm.models import scores as scores_lib

B, T, N, K, H = 2, 11, 4, 2, 8
QUERIES, KEYS, VALUES, COTANGENT = (
    jax.random.normal(key, (B, T, heads, H))
    for key, heads in zip(
        jax.random.split(jax.random.key(0), 4), (N, K, K, N), strict=True
    )
)
SEGMENTS = jnp.array(
    [[1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0], [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3]]
)
# In the second row, two responses continue one prompt.
PARENTS = SEGMENTS.at[1, 5:].set(1)
POSITIONS = jnp.array(
    [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0], [0, 0, 0, 1, 2, 3, 4, 3, 4, 5, 6]]
)
# Gemma's: another scale, a cap that scores come near to, three tokens.
RULE, WINDOW = scores_lib.Rule(0.9, 1.5), 3


def _full(queries, keys, values):
  """Repeats keys over heads and keeps the whole [T, T] softmax."""
  keys, values = (jnp.repeat(x, N // K, axis=2) for x in (keys, values))
  scores = jnp.einsum("btnh,bsnh->bnts", queries, keys) / np.sqrt(H)
  allowed = np.tril(np.ones((T, T), bool))
  own, parent = (x[:, :, None] for x in (SEGMENTS, PARENTS))
  keys_of = SEGMENTS[:, None, :]
  allowed = allowed & ((own == keys_of) | (parent == keys_of))
  scores = jnp.where(allowed[:, None], scores, -jnp.inf)
  return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), values)


def _near() -> np.ndarray:
  """Returns what WINDOW lets be read, pair by pair: bool [B, T, T]."""
  segments, parents, positions = map(np.asarray, (SEGMENTS, PARENTS, POSITIONS))
  allowed = np.zeros((B, T, T), bool)
  for row, query, key in np.ndindex(B, T, T):
    readable = segments[row, key] in (segments[row, query],
                                      parents[row, query])
    distance = positions[row, query] - positions[row, key]
    allowed[row, query, key] = (
        readable and key <= query and distance < WINDOW
    )
  return allowed


NEAR = _near()


def _full_capped(queries, keys, values):
  """Likewise, under RULE and WINDOW."""
  keys, values = (jnp.repeat(x, N // K, axis=2) for x in (keys, values))
  scores = 1.5 * jnp.tanh(0.9 * jnp.einsum("btnh,bsnh->bnts", queries, keys)
                          / 1.5)
  scores = jnp.where(NEAR[:, None], scores, -jnp.inf)
  return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), values)


def _causal(queries, keys, values, dtype=jnp.float32, plain=False):
  return attention.causal(
      queries, keys, values, SEGMENTS, PARENTS, dtype, plain
  )


def _pull(function):
  value, pull = jax.vjp(function, QUERIES, KEYS, VALUES)
  return value, *pull(COTANGENT)


@pytest.mark.parametrize("block", [512, 4])
def test_value_and_gradient_equal_the_full_softmax(block):
  """Block 4 of 11 tokens: three blocks of 4, the last with one added query."""
  with mock.patch.object(attention, "BLOCK", block):
    found = jax.jit(lambda: _pull(_causal))()
  for ours, full in zip(found, jax.jit(lambda: _pull(_full))(), strict=True):
    np.testing.assert_allclose(ours, full, atol=3e-6)


@pytest.mark.parametrize("block", [512, 4])
def test_windows_scales_and_caps_equal_the_full_softmax(block):
  """Value, gradient and forward derivative; windows end inside a block."""

  def capped(queries, keys, values, plain=False):
    return attention.causal(
        queries, keys, values, SEGMENTS, PARENTS, jnp.float32, plain,
        rule=RULE, positions=POSITIONS, window=jnp.int32(WINDOW),
    )

  expected = jax.jit(lambda: _pull(_full_capped))()
  with mock.patch.object(attention, "BLOCK", block):
    found = jax.jit(lambda: _pull(capped))()
    value, push = jax.linearize(
        jax.jit(lambda *x: capped(*x, plain=True)), QUERIES, KEYS, VALUES
    )
  for ours, full in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, full, atol=5e-6)
  np.testing.assert_array_equal(value, found[0])
  pushed = jnp.vdot(push(*expected[1:]), COTANGENT)
  square = sum(jnp.vdot(x, x) for x in expected[1:])
  np.testing.assert_allclose(pushed, square, rtol=1e-5)
  # All of it differs from no window, no cap and the usual scale.
  assert np.abs(found[0] - _causal(QUERIES, KEYS, VALUES)).max() > 0.1


@pytest.mark.parametrize(
    "block, dtype, bound",
    [(512, jnp.float32, 1e-5), (4, jnp.float32, 1e-5),
     (4, jnp.bfloat16, 0.02)],
)
def test_plain_twin_is_differentiable_forward(block, dtype, bound):
  # Along the gradients, so that no inner product is a small difference.
  _, *tangents = jax.jit(lambda: _pull(_full))()
  with mock.patch.object(attention, "BLOCK", block):
    value, push = jax.linearize(
        jax.jit(lambda *x: _causal(*x, dtype, plain=True)),
        QUERIES, KEYS, VALUES,
    )
    same, *gradients = jax.jit(lambda: _pull(
        lambda *x: _causal(*x, dtype)))()
  np.testing.assert_array_equal(value, same)
  # One at a time: a derivative that is lost must not hide in a sum.
  for index, tangent in enumerate(tangents):
    only = [jnp.zeros_like(x) for x in tangents]
    only[index] = tangent
    paired = jnp.vdot(gradients[index], tangent)
    found = jnp.vdot(push(*only), COTANGENT)
    np.testing.assert_allclose(found, paired, rtol=bound)


def test_bfloat16_stays_near_float32():
  exact = jax.jit(lambda: _pull(_full))()
  rounded = jax.jit(lambda: _pull(lambda *x: _causal(*x, jnp.bfloat16)))()
  for ours, full in zip(rounded, exact, strict=True):
    cosine = jnp.vdot(ours, full) / jnp.linalg.norm(ours) / jnp.linalg.norm(
        full
    )
    assert cosine > 0.9999


def test_large_scores_neither_overflow_nor_vanish():
  """Scores near ±1e4: the largest is subtracted before exp."""
  found = attention.causal(
      1e3 * QUERIES, 1e2 * KEYS, VALUES, SEGMENTS, PARENTS, jnp.float32
  )
  assert np.all(np.isfinite(found))
  np.testing.assert_allclose(
      found, _full(1e3 * QUERIES, 1e2 * KEYS, VALUES), atol=1e-4
  )


def test_a_scan_over_layers_keeps_no_mask_of_all_blocks():
  """Temporary memory of the gradient grows with T, not with its square."""

  def temporary_bytes(tokens):
    ids = jnp.ones((1, tokens), jnp.int32)
    inputs = jnp.ones((1, tokens, N, H))

    def loss(inputs):
      def layer(x, _):
        keys = x[:, :, :K]
        return x + attention.causal(x, keys, keys, ids, ids, jnp.float32), None

      return jnp.sum(jax.lax.scan(layer, inputs, length=2)[0])

    compiled = jax.jit(jax.grad(loss)).lower(inputs).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  with mock.patch.object(attention, "BLOCK", 64):
    assert temporary_bytes(4096) < 2.5 * temporary_bytes(2048)
