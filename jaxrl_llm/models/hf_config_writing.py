"""Writes config.json of a Hugging Face folder."""

from typing import Any

from jaxrl_llm.models import config as model_config

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


def write(config: model_config.ModelConfig, dtype: str) -> dict[str, Any]:
  """Returns the content of config.json; `dtype` is most tensors' one."""
  raw = {
      "architectures": [_ARCHITECTURES[config.family]],
      "model_type": config.family,
      "vocab_size": config.vocab_size,
      "hidden_size": config.width,
      "intermediate_size": config.mlp_width,
      "num_hidden_layers": config.layers,
      "num_attention_heads": config.heads,
      "num_key_value_heads": config.kv_heads,
      "head_dim": config.head_dim,
      "max_position_embeddings": config.context_length,
      "rms_norm_eps": config.norm_epsilon,
      "rope_theta": config.rope_theta,
      "rope_scaling": _rope_scaling(config.rope_scaling),
      "tie_word_embeddings": config.tied_embeddings,
      "torch_dtype": dtype,
  }
  if config.block.gelu:
    raw["hidden_activation"] = "gelu_pytorch_tanh"
  else:
    raw["hidden_act"] = "silu"
  if not config.block.biased_heads:
    raw["attention_bias"] = False
  if config.family == "llama":
    raw["mlp_bias"] = False
  else:
    raw |= _windows(config)
  if config.family.startswith("gemma"):
    raw |= {
        "query_pre_attn_scalar": _number(config.score_divisor),
        "attn_logit_softcapping": config.score_softcap or None,
        "final_logit_softcapping": config.logit_softcap or None,
    }
  if config.local_rope_theta is not None:
    raw["rope_local_base_freq"] = config.local_rope_theta
  return raw | special_ids(config)


def special_ids(config: model_config.ModelConfig) -> dict[str, Any]:
  """Returns the ids that config.json and generation_config.json share."""
  eos_ids = list(config.eos_ids)
  return {
      "bos_token_id": config.bos_id,
      "eos_token_id": eos_ids[0] if len(eos_ids) == 1 else eos_ids or None,
      "pad_token_id": config.pad_id,
  }


def _number(value: float) -> float | int:
  """Writes a whole number as an int, as transformers wants it."""
  return int(value) if value == int(value) else value


def _windows(config: model_config.ModelConfig) -> dict[str, Any]:
  local = config.local_layers or (False,) * config.layers
  raw = {
      "layer_types": [
          "sliding_attention" if kind else "full_attention" for kind in local
      ],
  }
  if config.family.startswith("qwen"):
    raw["use_sliding_window"] = config.sliding_window > 0
  if config.sliding_window:
    raw["sliding_window"] = config.sliding_window
  return raw


def _rope_scaling(
    scaling: model_config.RopeScaling,
) -> dict[str, Any] | None:
  if scaling.kind == "none":
    return None
  raw = {"rope_type": scaling.kind, "factor": scaling.factor}
  length = scaling.original_context_length
  if scaling.kind == "llama3":
    raw |= {
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": length,
    }
  if scaling.kind == "yarn":
    raw |= {
        "original_max_position_embeddings": length,
        "beta_fast": scaling.fast_rotations,
        "beta_slow": scaling.slow_rotations,
    }
    if scaling.magnitude is not None:
      raw["attention_factor"] = scaling.magnitude
  return raw
