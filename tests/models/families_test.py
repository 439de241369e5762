"""Every family: cached decoding, packing, gradients and sharding names."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.models import weight_layout

_SIZES = dict(
    vocab_size=61, width=32, layers=4, heads=4, kv_heads=2, head_dim=8,
    mlp_width=48, rope_theta=100.0,
)
_WINDOW = dict(
    sliding_window=5, local_layers=config_lib.local_pattern(4, 2)
)
CONFIGS = {
    "qwen2": config_lib.ModelConfig(
        **_SIZES, family="qwen2",
        rope_scaling=config_lib.RopeScaling(
            "yarn", 4.0, original_context_length=16, fast_rotations=4.0
        ),
    ),
    "qwen2 windows": config_lib.ModelConfig(
        **_SIZES, **_WINDOW, family="qwen2", tied_embeddings=False
    ),
    "qwen3": config_lib.ModelConfig(**_SIZES, family="qwen3"),
    "gemma2": config_lib.ModelConfig(
        **_SIZES, **_WINDOW, family="gemma2", score_divisor=24.0,
        score_softcap=2.0, logit_softcap=3.0,
    ),
    "gemma3_text": config_lib.ModelConfig(
        **_SIZES, **_WINDOW, family="gemma3_text", score_divisor=24.0,
        local_rope_theta=20.0,
    ),
}
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 21)).astype(np.int32)


@functools.cache
def _policy(name, dtype="float32"):
  """Weights far from what would hide a bias, a norm or a window."""
  policy = policy_lib.Policy(CONFIGS[name], dtype)

  def draw(path, value, key):
    leaf = path[-1].key
    noise = jax.random.normal(key, value.shape)
    if leaf in weight_layout.VECTORS:
      return value + 0.5 * noise
    return noise if leaf == "embedding" else 0.3 * noise

  shapes = policy.init(jax.random.key(0))
  keys = jax.random.split(jax.random.key(1), len(jax.tree.leaves(shapes)))
  keys = jax.tree.unflatten(jax.tree.structure(shapes), keys)
  return policy, jax.tree_util.tree_map_with_path(draw, shapes, keys)


def _score(policy, params, tokens, **options):
  ones = jnp.ones_like(tokens)
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  return policy.token_logprobs(
      params, tokens, ones, ones, positions, jnp.ones(tokens.shape),
      **options,
  )


@pytest.mark.parametrize("name", CONFIGS)
def test_sampler_and_trainer_agree(name):
  """prefill + decode + append say what token_logprobs says of whole rows.

  Prompts of 8 and 3 tokens, windows of 5: the window ends in the cache, in
  the recent tokens and at the start of the row.
  """
  policy, params = _policy(name)
  expected = jax.jit(functools.partial(_score, policy))(params, TOKENS).logprobs
  weights = policy.serving_copy(params)
  lengths = np.array([8, 3])
  prefilled, logits = jax.jit(policy.prefill)(weights, TOKENS[:, :8], lengths)
  cache = policy.init_cache(weights, 2, 64)
  cache = policy_lib.insert(cache, jnp.arange(2), prefilled, jnp.arange(2))

  @jax.jit
  def step(cache, lengths, index, tokens, recent):
    return policy.decode(weights, cache, lengths)(index, tokens, recent)

  rows = np.arange(2)
  for _ in range(3):
    recent = policy_lib.no_recent(cache, 4)
    for index in range(4):
      tokens = TOKENS[rows, lengths + index]
      found = jax.nn.log_softmax(logits)[rows, tokens]
      np.testing.assert_allclose(
          found, expected[rows, lengths + index], atol=2e-5
      )
      recent, logits = step(cache, lengths, index, tokens, recent)
    cache = policy_lib.append(cache, recent, jnp.asarray(lengths))
    lengths = lengths + 4


@pytest.mark.parametrize("name", ["qwen2 windows", "gemma2", "gemma3_text"])
def test_local_layers_read_the_window_alone(name):
  """With all layers local, token t − 4 · 5 is out of reach, t − 4 · 4 is in.

  A window of 5 reads 4 tokens back; four layers read 16 back, and log-prob t
  is made of the hidden state of token t − 1.
  """
  policy, params = _policy(name)
  local = policy_lib.Policy(
      policy.config.replace(local_layers=(True,) * 4), "float32"
  )
  tokens = TOKENS[:1]
  changed = np.where(np.arange(21) == 0, (tokens + 1) % 61, tokens)
  score = jax.jit(functools.partial(_score, local))
  before, after = (score(params, x).logprobs[0] for x in (tokens, changed))
  np.testing.assert_array_equal(before[18:], after[18:])
  assert np.all(before[1:17] != after[1:17])
  score = jax.jit(functools.partial(_score, policy))
  before, after = (score(params, x).logprobs[0] for x in (tokens, changed))
  assert np.all(before[18:] != after[18:])


@pytest.mark.parametrize("name", CONFIGS)
def test_responses_that_share_a_prompt(name):
  """A window counts positions: what lies between prompt and response is not.

  One prompt of 6 tokens and two responses of 5 in one row, against two rows.
  """
  policy, params = _policy(name)
  alone = TOKENS[:, :11].copy()
  alone[1, :6] = alone[0, :6]
  expected = jax.jit(functools.partial(_score, policy))(params, alone).logprobs
  row = np.concatenate([alone[0], alone[1, 6:]])[None]
  segments = np.array([[1] * 6 + [2] * 5 + [3] * 5])
  parents = np.ones_like(segments)
  positions = np.array([[*range(11), *range(6, 11)]])
  found = jax.jit(policy.token_logprobs)(
      params, row, segments, parents, positions, np.ones(row.shape, np.float32)
  ).logprobs[0]
  # The first token of a segment is not scored.
  np.testing.assert_allclose(found[7:11], expected[0, 7:], atol=2e-5)
  np.testing.assert_allclose(found[12:], expected[1, 7:], atol=2e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradient_of_every_weight_equals_the_forward_derivative(name):
  """⟨∇, v⟩ for v = each array's own gradient: ‖∇‖² of that array."""
  policy, params = _policy(name)
  weights = np.cos(np.arange(42.0)).reshape(2, 21)

  def loss(params, plain):
    scored = _score(policy, params, TOKENS, entropy=True, plain=plain)
    return jnp.sum(weights * (scored.logprobs + 0.3 * scored.entropy))

  gradient = jax.jit(jax.grad(loss), static_argnums=1)(params, False)
  _, push = jax.linearize(jax.jit(lambda p: loss(p, True)), params)
  push = jax.jit(push)
  zeros = jax.tree.map(jnp.zeros_like, params)
  leaves, structure = jax.tree.flatten(gradient)
  for index, leaf in enumerate(leaves):
    only = jax.tree.leaves(zeros)
    only[index] = leaf
    paired = push(jax.tree.unflatten(structure, only))
    np.testing.assert_allclose(paired, np.sum(np.square(leaf)), rtol=2e-4)
    assert paired > 0


@pytest.mark.parametrize("name", ["qwen2 windows", "gemma2", "gemma3_text"])
def test_bfloat16_stays_near_float32(name):
  exact = jax.jit(functools.partial(_score, _policy(name)[0]))
  rounded = jax.jit(functools.partial(_score, _policy(name, "bfloat16")[0]))
  params = _policy(name)[1]
  difference = (
      rounded(params, TOKENS).logprobs - exact(params, TOKENS).logprobs
  )
  assert 0 < np.abs(difference).mean() < 0.2


@pytest.mark.parametrize("name", CONFIGS)
def test_every_array_has_a_place_and_a_name_in_the_layout(name):
  policy, params = _policy(name)
  places = sharding.shardings(
      sharding.make_mesh("data=1"), policy.logical_axes, policy.shapes
  )
  assert jax.tree.structure(places) == jax.tree.structure(params)
  axes = policy.logical_axes["layers"]
  if policy.config.block.biased_heads:
    assert axes["query_bias"] == ("layers", "heads", "head_dim")
    assert axes["value_bias"] == ("layers", "kv_heads", "head_dim")
  shapes = weight_layout.shapes(policy.config)
  for path, value in jax.tree_util.tree_leaves_with_path(params):
    leaf = jax.tree_util.keystr(path, simple=True, separator="/")
    assert shapes.pop(leaf) == value.shape
  assert not shapes


def test_initial_norms_change_nothing():
  """1 + w norms start at w = 0, the others at 1; biases at 0."""
  for name, start in (("gemma3_text", 0.0), ("qwen3", 1.0)):
    params = policy_lib.Policy(CONFIGS[name]).init(jax.random.key(0))
    for norm in ("attention_norm", "query_norm"):
      np.testing.assert_array_equal(params["layers"][norm], start)
    np.testing.assert_array_equal(params["final_norm"], start)
  params = policy_lib.Policy(CONFIGS["qwen2"]).init(jax.random.key(0))
  np.testing.assert_array_equal(params["layers"]["key_bias"], 0.0)
