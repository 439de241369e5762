"""Adapters: nothing at first, then exactly alpha / R · a · b, and alone."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import lora as lora_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding

CONFIG = config_lib.ModelConfig(
    vocab_size=61, width=32, layers=2, heads=4, kv_heads=2, head_dim=8,
    mlp_width=48, rope_theta=100.0, family="qwen2",
)
LORA = lora_lib.Lora(3, 6.0)
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 9)).astype(np.int32)
WEIGHTS = np.cos(np.arange(18.0)).reshape(2, 9)


def _policy(base_dtype="float32", dtype="float32", lora=LORA):
  return policy_lib.Policy(CONFIG, dtype, lora=lora, base_dtype=base_dtype)


def _moved(params):
  """Adapters that change every matrix."""
  keys = iter(jax.random.split(jax.random.key(7), 20))
  return policy_lib.with_trained(params, jax.tree.map(
      lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape),
      policy_lib.trained(params),
  ))


def _score(policy, params, **options):
  ones = jnp.ones_like(TOKENS)
  positions = jnp.broadcast_to(jnp.arange(9), TOKENS.shape)
  score = jax.jit(lambda p: policy.token_logprobs(
      p, TOKENS, ones, ones, positions, jnp.ones(TOKENS.shape), **options
  ))
  return score(params).logprobs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_new_adapters_change_no_bit(dtype):
  policy = _policy(dtype=dtype)
  params = policy.init(jax.random.key(0))
  masters = policy_lib.Policy(CONFIG, dtype).init(jax.random.key(0))
  for ours, theirs in zip(
      jax.tree.leaves(policy_lib.base(params)), jax.tree.leaves(masters),
      strict=True,
  ):
    np.testing.assert_array_equal(ours, theirs)
  np.testing.assert_array_equal(
      _score(policy, params), _score(policy.without_adapters(), masters)
  )


@pytest.mark.parametrize("base_dtype", ["float32", "bfloat16", "int8"])
def test_merged_weights_give_the_same_log_probs(base_dtype):
  """Forward, forward-mode twin and sampler, against merged masters."""
  policy = _policy(base_dtype)
  params = _moved(policy.init(jax.random.key(0)))
  merged, plain = policy.merged(params), policy.without_adapters()
  expected = _score(plain, merged)
  np.testing.assert_allclose(_score(policy, params), expected, atol=1e-5)
  np.testing.assert_allclose(
      _score(policy, params, plain=True), expected, atol=1e-5
  )
  lengths = jnp.array([9, 4])
  served = policy.prefill(policy.serving_copy(params), TOKENS, lengths)[1]
  logits = plain.prefill(plain.serving_copy(merged), TOKENS, lengths)[1]
  np.testing.assert_allclose(served, logits, atol=1e-5)
  unadapted = policy_lib.with_trained(
      params, jax.tree.map(jnp.zeros_like, policy_lib.trained(params))
  )
  assert np.abs(_score(policy, unadapted) - expected).max() > 0.1


def test_change_worked_by_hand():
  """R = 2, alpha = 1: ½ · [1, 2]ᵀ-columns · rows.

  a = [[1, 2]] reads one feature, b = [[3], [4]] makes one: ½ (1·3 + 2·4).
  """
  adapters = {"gate_a": jnp.array([[[1.0, 2.0]]]),
              "gate_b": jnp.array([[[3.0], [4.0]]])}
  lora = lora_lib.Lora(2, 1.0, ("gate",))
  np.testing.assert_array_equal(
      lora_lib.change(lora, adapters, "gate"), [[[5.5]]]
  )


def test_gradient_of_adapters_is_that_of_the_merged_weights():
  """Through a·b by the chain rule: the base's gradient never appears."""
  policy = _policy("bfloat16")
  params = _moved(policy.init(jax.random.key(0)))

  def loss(adapters, score):
    return jnp.sum(WEIGHTS * score(policy_lib.with_trained(params, adapters)))

  found = jax.grad(loss)(
      policy_lib.trained(params), lambda p: _score(policy, p)
  )
  plain = policy.without_adapters()
  expected = jax.grad(loss)(
      policy_lib.trained(params), lambda p: _score(plain, policy.merged(p))
  )
  for name, gradient in expected.items():
    assert found[name].dtype == jnp.float32
    np.testing.assert_allclose(
        found[name], gradient, atol=1e-4 * np.abs(gradient).max()
    )
  # Forward mode: ⟨∇, ∇⟩.
  push = jax.linearize(
      lambda a: loss(a, lambda p: _score(policy, p, plain=True)),
      policy_lib.trained(params),
  )[1]
  square = sum(float(jnp.sum(x**2)) for x in found.values())
  np.testing.assert_allclose(push(found), square, rtol=1e-4)


def test_only_targets_have_adapters():
  policy = _policy(lora=lora_lib.Lora(3, 6.0, ("query", "down")))
  params = _moved(policy.init(jax.random.key(0)))
  assert policy_lib.trained(params).keys() == {
      "query_a", "query_b", "down_a", "down_b"
  }
  merged, base = policy.merged(params), policy_lib.base(params)
  changed = {
      name for name, value in merged["layers"].items()
      if np.any(value != base["layers"][name])
  }
  assert changed == {"query", "down"}
  places = sharding.shardings(
      sharding.make_mesh("data=1"), policy.logical_axes, policy.shapes
  )
  assert jax.tree.structure(places) == jax.tree.structure(params)
  assert policy.logical_axes["adapters"]["query_b"] == (
      "layers", "rank", "heads", "head_dim"
  )


def test_folder_as_peft_wants_it(tmp_path):
  """Names, shapes and the settings that PEFT computes alpha / R from.

  (By hand: PEFT loads such a folder with no missing key, and its model gives
  the log-probs of `merged`.)
  """
  policy = _policy(lora=lora_lib.Lora(3, 6.0, ("query", "output", "up")))
  params = _moved(policy.init(jax.random.key(0)))
  out = tmp_path / "a/out"
  policy_lib.save_adapters(out, policy, params, "some/model")
  assert [file.name for file in out.parent.iterdir()] == ["out"]
  raw = json.loads((out / "adapter_config.json").read_text())
  assert raw["base_model_name_or_path"] == "some/model"
  assert (raw["r"], raw["lora_alpha"], raw["peft_type"]) == (3, 6.0, "LORA")
  assert raw["target_modules"] == ["q_proj", "o_proj", "up_proj"]
  tensors = safetensors.numpy.load_file(out / "adapter_model.safetensors")
  stem = "base_model.model.model.layers.1"
  shapes = {
      name.removeprefix(stem): value.shape
      for name, value in tensors.items() if name.startswith(stem)
  }
  assert shapes == {
      ".self_attn.q_proj.lora_A.weight": (3, 32),
      ".self_attn.q_proj.lora_B.weight": (32, 3),
      ".self_attn.o_proj.lora_A.weight": (3, 32),
      ".self_attn.o_proj.lora_B.weight": (32, 3),
      ".mlp.up_proj.lora_A.weight": (3, 32),
      ".mlp.up_proj.lora_B.weight": (48, 3),
  }
  assert len(tensors) == 12
  # out = (alpha / R) · B · A · x, with both as the file has them.
  product = 2.0 * (
      tensors[f"{stem}.self_attn.o_proj.lora_B.weight"]
      @ tensors[f"{stem}.self_attn.o_proj.lora_A.weight"]
  )
  merged = policy.merged(params)["layers"]["output"][1]
  base = policy_lib.base(params)["layers"]["output"][1]
  np.testing.assert_allclose(
      product.T.reshape(4, 8, 32), merged - base, atol=1e-6
  )
  with pytest.raises(FileExistsError):
    policy_lib.save_adapters(out, policy, params, "some/model")
  with pytest.raises(ValueError, match="export.format"):
    policy_lib.save_adapters(
        tmp_path / "b", policy.without_adapters(), params["base"], ""
    )


def _settings(**keys):
  return policy_lib.ModelSettings(
      path="", preset="tiny", tokenizer="", compute_dtype="float32",
      remat="none", **keys,
  )


def test_settings():
  settings = _settings(lora_rank=8, lora_targets="query, value")
  assert settings.lora == lora_lib.Lora(8, 16.0, ("query", "value"))
  assert settings.frozen_dtype == "bfloat16"
  policy, params = policy_lib.load("", settings)
  assert policy.lora == settings.lora
  assert policy_lib.base(params)["layers"]["gate"].dtype == np.uint16
  assert settings.without_adapters() == _settings()


@pytest.mark.parametrize("keys, word", [
    ({"lora_rank": 4, "lora_targets": "query,q_proj"}, "lora_targets"),
    ({"lora_rank": 4, "lora_targets": "query,query"}, "lora_targets"),
    ({"lora_rank": 4, "lora_alpha": 0.0}, "lora_alpha"),
    ({"lora_rank": -1}, "lora_rank"),
    ({"lora_rank": 4, "lora_base_dtype": "int4"}, "lora_base_dtype"),
    ({"lora_alpha": 4.0}, "lora_alpha"),
    ({"lora_base_dtype": "int8"}, "lora_base_dtype"),
])
def test_refused_settings(keys, word):
  with pytest.raises(ValueError, match=word) as caught:
    _settings(**keys)
  assert "\n" not in str(caught.value)
