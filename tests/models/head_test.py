"""head.py against log_softmax over all of [T, V]."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import head

B, T, D, V = 3, 21, 8, 19
KEYS = jax.random.split(jax.random.key(0), 6)
HIDDEN = jax.random.normal(KEYS[0], (B, T, D))
WEIGHT = jax.random.normal(KEYS[1], (V, D))
TARGETS = jax.random.randint(KEYS[2], (B, T), 0, V)
TEMPERATURES = jax.random.uniform(KEYS[3], (B, T), minval=0.5, maxval=2.0)
GATHERED = jax.random.randint(KEYS[4], (B, T, 2), 0, V)
# Rows of 12, 0 and 4 wanted tokens: in chunks of 5, 3 of 5 chunks are walked.
MASK = jnp.zeros((B, T), bool).at[0, 3:15].set(True).at[2, ::6].set(True)
COTANGENTS = jax.random.normal(KEYS[5], (4, B, T, 3))
REQUEST = head.Request(entropy=True, topk=3)


def _chunked(hidden, weight, temperatures=TEMPERATURES, plain=False):
  with (
      mock.patch.object(head, "CHUNK_TOKENS", 15),
      mock.patch.object(head, "MIN_ROW_TOKENS", 1),
  ):
    return head.token_logprobs(
        hidden, weight, weight, TARGETS, temperatures, MASK, GATHERED,
        REQUEST, plain,
    )


def _full(hidden, weight):
  logits = hidden @ weight.T / TEMPERATURES[..., None]
  logprobs = jax.nn.log_softmax(logits)
  top, ids = jax.lax.top_k(logprobs, 3)
  pick = functools.partial(jnp.take_along_axis, logprobs, axis=-1)
  every = head.TokenLogprobs(
      logprobs=pick(TARGETS[..., None])[..., 0],
      entropy=-jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1),
      topk_ids=ids,
      topk_logprobs=top,
      gathered=pick(GATHERED),
  )
  keep = lambda x: jnp.where(
      MASK if x.ndim == 2 else MASK[..., None], x, 0)
  return jax.tree.map(keep, every)


def _mixture(result):
  """A scalar that needs the gradient of every output."""
  parts = (
      result.logprobs[..., None], result.entropy[..., None],
      result.topk_logprobs, result.gathered,
  )
  return sum(
      jnp.sum(part * given[..., : part.shape[-1]])
      for part, given in zip(parts, COTANGENTS, strict=True)
  )


def _gradients(function):
  return jax.jit(
      jax.grad(lambda *x: _mixture(function(*x)), argnums=(0, 1))
  )(HIDDEN, WEIGHT)


@pytest.mark.parametrize("plain", [False, True])
def test_values_equal_the_full_softmax(plain):
  found = jax.jit(functools.partial(_chunked, plain=plain))(HIDDEN, WEIGHT)
  expected = _full(HIDDEN, WEIGHT)
  np.testing.assert_array_equal(found.topk_ids, expected.topk_ids)
  for ours, full in zip(
      jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(ours, full, atol=1e-5)


def test_gradients_equal_the_full_softmax():
  for ours, full in zip(_gradients(_chunked), _gradients(_full), strict=True):
    np.testing.assert_allclose(ours, full, atol=2e-5)


def test_plain_twin_is_differentiable_forward():
  tangents = (jnp.roll(HIDDEN, 1, 0), jnp.roll(WEIGHT, 1, 0))
  _, forward = jax.jit(lambda: jax.jvp(
      lambda *x: _mixture(_chunked(*x, plain=True)), (HIDDEN, WEIGHT), tangents
  ))()
  paired = sum(map(jnp.vdot, _gradients(_chunked), tangents))
  np.testing.assert_allclose(forward, paired, rtol=1e-5)


def test_what_is_not_asked_for_may_be_anything():
  """NaN where the mask is False reaches no value and no gradient."""
  hidden = jnp.where(MASK[..., None], HIDDEN, jnp.nan)
  temperatures = jnp.where(MASK, TEMPERATURES, jnp.nan)

  @jax.jit
  def both(hidden, temperatures):
    function = lambda *x: _mixture(_chunked(*x, temperatures))
    return jax.value_and_grad(function, (0, 1))(hidden, WEIGHT)

  clean = both(HIDDEN, TEMPERATURES)
  for ours, full in zip(
      jax.tree.leaves(both(hidden, temperatures)), jax.tree.leaves(clean)
  ):
    np.testing.assert_array_equal(ours, full)


def test_temperature_divides_logits():
  """Logits (1, 0) at τ = 0.6: log-probs −0.173 and −1.840."""
  result = head.token_logprobs(
      jnp.ones((1, 2, 1)), jnp.array([[1.0], [0.0]]),
      jnp.array([[1.0], [0.0]]), jnp.array([[0, 1]]), jnp.full((1, 2), 0.6),
      jnp.ones((1, 2), bool), None, head.Request(),
  )
  np.testing.assert_allclose(
      result.logprobs, [[-0.173008, -1.839674]], rtol=1e-5
  )


def test_ids_outside_the_vocabulary_read_the_nearest_inside():
  def gathered(ids):
    return head.token_logprobs(
        HIDDEN, WEIGHT, WEIGHT, TARGETS, TEMPERATURES, MASK,
        jnp.broadcast_to(jnp.array(ids), (B, T, 2)), head.Request(),
    ).gathered

  np.testing.assert_array_equal(gathered([-1, V]), gathered([0, V - 1]))
