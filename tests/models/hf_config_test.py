"""config.json of every family: what is read, and that nothing is ignored."""

import json
import pathlib

import pytest

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import hf_config
from jaxrl_llm.models import hf_config_writing

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
FAMILIES = (
    "llama_tied", "llama_untied", "qwen2", "qwen2_yarn", "qwen3", "gemma2",
    "gemma3",
)
# As released: older spellings than transformers 5 writes.
GEMMA3_1B = {
    "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152,
    "intermediate_size": 6912, "num_hidden_layers": 26,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "rope_scaling": None, "sliding_window": 512, "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256, "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2,
    "eos_token_id": [1, 106], "pad_token_id": 0, "cache_implementation":
    "hybrid", "use_cache": True, "torch_dtype": "bfloat16",
}
QWEN25 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "max_position_embeddings": 32768,
    "max_window_layers": 21, "sliding_window": 32768,
    "use_sliding_window": False, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": True, "hidden_act": "silu",
    "bos_token_id": 151643, "eos_token_id": 151645,
}


def _raw(name):
  return json.loads((GOLDEN / name / "config.json").read_text())


def test_gemma3_as_it_was_released():
  config = hf_config.read(GEMMA3_1B, {})
  assert config.tied_embeddings  # The family's default; no key says so.
  assert config.sliding_window == 512
  assert config.local_layers == config_lib.local_pattern(26, 6)
  assert [n for n, local in enumerate(config.local_layers) if not local] == [
      5, 11, 17, 23
  ]
  assert (config.rope_theta, config.local_rope_theta) == (1e6, 1e4)
  assert (config.score_divisor, config.logit_softcap) == (256.0, 0.0)
  assert config.eos_ids == (1, 106)


def test_qwen25_as_it_was_released():
  config = hf_config.read(QWEN25, {})
  assert (config.sliding_window, config.local_layers) == (0, ())
  assert (config.head_dim, config.block.biased_heads) == (64, True)
  windows = QWEN25 | {"use_sliding_window": True, "sliding_window": 100}
  config = hf_config.read(windows, {})
  assert config.sliding_window == 100
  assert config.local_layers == (False,) * 21 + (True,) * 3


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_written_is_read_as_the_same(name):
  config = hf_config.read(_raw(name), {})
  raw = hf_config_writing.write(config, "float32")
  assert hf_config.read(json.loads(json.dumps(raw)), {}) == config


@pytest.mark.parametrize("name, changes, words", [
    ("qwen2", {"attention_bias": False}, ("attention_bias", "True")),
    ("qwen3", {"attention_bias": True}, ("attention_bias", "False")),
    ("gemma3", {"attention_bias": True}, ("attention_bias",)),
    ("qwen3", {"num_experts": 8}, ("num_experts", "8")),
    ("qwen3", {"model_type": "qwen3_moe"}, ("model_type", "qwen3_moe")),
    ("gemma3", {"model_type": "gemma3"}, ("model_type", "gemma3_text")),
    ("gemma3", {"attn_logit_softcapping": 50.0}, ("attn_logit_softcapping",)),
    ("gemma3", {"use_bidirectional_attention": True}, ("bidirectional",)),
    ("gemma2", {"hidden_activation": "gelu"}, ("gelu_pytorch_tanh",)),
    ("qwen2", {"layer_types": ["full_attention", "linear_attention"]},
     ("layer_types", "linear_attention")),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]},
     ("layer_types", "sliding_window")),
    ("llama_tied", {"sliding_window": 8}, ("sliding_window",)),
    ("llama_tied", {"attention_multiplier": 0.5}, ("attention_multiplier",)),
    ("qwen2", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
     ("rope_type", "dynamic")),
    ("qwen2_yarn", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                     "mscale": 0.7}}, ("mscale", "0.7")),
    ("qwen2", {"rope_parameters": {"rope_type": "default",
                                   "partial_rotary_factor": 0.5}},
     ("partial_rotary_factor",)),
    ("gemma3", {"rope_parameters": {"chunked_attention": {}}},
     ("chunked_attention",)),
    ("gemma3", {"rope_parameters": {"sliding_attention": {
        "rope_type": "linear", "factor": 2.0}}}, ("sliding_attention",)),
])
def test_refusals(name, changes, words):
  with pytest.raises(ValueError) as caught:
    hf_config.read(_raw(name) | changes, {})
  message = str(caught.value)
  assert "\n" not in message
  for word in words:
    assert word in message


def test_features_that_are_off_are_no_features():
  raw = _raw("qwen3") | {"use_qk_scale": False, "experts": None, "aux": []}
  assert hf_config.read(raw, {}) == hf_config.read(_raw("qwen3"), {})


def test_yarn_without_a_length_takes_the_context():
  rope = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}
  config = hf_config.read(QWEN25 | {"rope_scaling": rope}, {})
  assert config.rope_scaling == config_lib.RopeScaling(
      "yarn", 4.0, original_context_length=32768, magnitude=1.5
  )
