"""Frozen weights in 8 and 16 bits: bounds, and what they are used for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import frozen
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.models import weight_layout

CONFIG = config_lib.ModelConfig(
    vocab_size=61, width=32, layers=2, heads=4, kv_heads=2, head_dim=8,
    mlp_width=48, rope_theta=100.0, tied_embeddings=False,
)
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 15)).astype(np.int32)


def test_quantize_worked_by_hand():
  """Channel (254, −127): scale 2; channel (0, 0): scale 1; 1.27 → 0.01."""
  weights = jnp.array([[[254.0, 0.0, 1.27], [-127.0, 0.0, 0.014]]])
  found = frozen.quantize(weights, read=1)
  np.testing.assert_array_equal(
      found.values, [[[127, 0, 127], [-64, 0, 1]]]
  )
  np.testing.assert_allclose(found.scales, [[[2.0, 1.0, 0.01]]], rtol=1e-6)
  np.testing.assert_allclose(
      frozen.weight(found, jnp.float32),
      [[[254.0, 0.0, 1.27], [-128.0, 0.0, 0.01]]], rtol=1e-6,
  )


@pytest.mark.parametrize("storage, bound", [("bfloat16", 2**-8),
                                            ("int8", 1 / 254)])
def test_every_matrix_is_within_its_bound(storage, bound):
  """bfloat16: 2⁻⁸ of the weight; int8: 1/254 of its channel's largest."""
  policy = policy_lib.Policy(CONFIG)
  masters = policy.init(jax.random.key(0))
  kept = policy.freeze(masters, storage)
  back = frozen.thaw(kept, tied=False)
  for name, weight in masters["layers"].items():
    if name in weight_layout.VECTORS:
      np.testing.assert_array_equal(back["layers"][name], weight)
      continue
    size = np.abs(weight)
    if storage == "int8":
      read = weight_layout.read_axes(name)
      size = size.max(tuple(range(1, 1 + read)), keepdims=True)
    error = np.abs(back["layers"][name] - weight)
    assert np.all(error <= 1.001 * bound * size + 1e-12)
    assert np.any(error > 0)
  for name in ("embedding", "head"):
    error = np.abs(back[name] - masters[name])
    assert np.all(error <= 2**-8 * np.abs(masters[name]))
  matrices = [x for x in jax.tree.leaves(masters["layers"]) if x.ndim > 2]
  kept_bytes = sum(x.nbytes for x in jax.tree.leaves(kept["layers"]))
  assert kept_bytes < {"bfloat16": 0.53, "int8": 0.32}[storage] * sum(
      x.nbytes for x in matrices
  )


def _score(policy, params):
  ones = jnp.ones_like(TOKENS)
  positions = jnp.broadcast_to(jnp.arange(15), TOKENS.shape)
  score = jax.jit(lambda p: policy.token_logprobs(
      p, TOKENS, ones, ones, positions, jnp.ones(TOKENS.shape)
  ))
  return score(params).logprobs


def _sharp(policy):
  """Masters whose log-probs differ by nats from token to token."""
  params = policy.init(jax.random.key(0))
  return params | {"head": 20 * params["head"]}


def test_a_bfloat16_reference_scores_as_float32_masters_do():
  """Where products take bfloat16, no bit of the weights is lost."""
  policy = policy_lib.Policy(CONFIG)
  masters = _sharp(policy)
  np.testing.assert_allclose(
      _score(policy, policy.freeze(masters, "bfloat16")),
      _score(policy, masters), atol=1e-5,
  )


@pytest.mark.parametrize("storage, bound", [("bfloat16", 0.1),
                                            ("int8", 0.2)])
def test_log_probs_stay_near_those_of_float32(storage, bound):
  """Nats, with log-probs that spread over more than 3; float32 products."""
  policy = policy_lib.Policy(CONFIG, "float32")
  masters = _sharp(policy)
  exact = _score(policy, masters)
  found = _score(policy, policy.freeze(masters, storage))
  assert np.ptp(exact) > 3
  assert 1e-6 < np.abs(found - exact).max() < bound
  # What a frozen tree stands for gives the same numbers.
  thawed = frozen.thaw(policy.freeze(masters, storage), tied=False)
  np.testing.assert_allclose(found, _score(policy, thawed), atol=1e-5)


def test_products_with_frozen_weights_have_a_gradient_of_inputs_alone():
  weights = jax.random.normal(jax.random.key(0), (1, 4, 6))
  leaf = jax.tree.map(lambda x: x[0], frozen.quantize(weights, read=1))
  inputs = jax.random.normal(jax.random.key(1), (3, 4))

  def loss(inputs, multiply):
    made = multiply(inputs, leaf, 6, jnp.dtype(jnp.float32))
    return jnp.sum(jnp.sin(made))

  found = jax.grad(loss)(inputs, frozen.product)
  expected = jax.grad(loss)(inputs, frozen.plain_product)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
def test_every_array_has_a_place(storage):
  policy = policy_lib.Policy(CONFIG)
  shapes = jax.eval_shape(
      lambda p: policy.freeze(p, storage), policy.shapes
  )
  places = sharding.shardings(
      sharding.make_mesh("data=1"), policy.axes_like(shapes), shapes
  )
  assert jax.tree.structure(places) == jax.tree.structure(shapes)
  down = policy.axes_like(shapes)["layers"]["down"]
  if storage == "int8":
    assert down.values == ("layers", "mlp", "embed")
    assert down.scales == ("layers", None, "embed")
