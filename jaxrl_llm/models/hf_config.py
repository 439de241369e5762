"""Reads config.json of a Hugging Face folder, and ignores nothing of it."""

from collections.abc import Mapping
from typing import Any

from jaxrl_llm.models import config as model_config
from jaxrl_llm.models import families

# Keys whose only supported value is given; absent means that value.
_FIXED = {
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "is_encoder_decoder": False,
    "use_bidirectional_attention": False,
    "pretraining_tp": 1,
}
_UNBIASED = {"attention_bias": False}
_SILU = _UNBIASED | {"hidden_act": "silu"}
_GELU = _UNBIASED | {"hidden_activation": "gelu_pytorch_tanh"}
_FIXED_BY_FAMILY = {
    "llama": _SILU | {"sliding_window": None, "layer_types": None},
    "qwen2": _SILU | {"attention_bias": True},
    "qwen3": _SILU,
    "gemma2": _GELU,
    # transformers reads this key and does nothing with it.
    "gemma3_text": _GELU | {"attn_logit_softcapping": None},
}
# Keys that are read below.
_READ = frozenset({
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "max_position_embeddings", "rms_norm_eps",
    "tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
    "rope_local_base_freq", "bos_token_id", "eos_token_id", "pad_token_id",
    "sliding_window", "use_sliding_window", "max_window_layers",
    "layer_types", "sliding_window_pattern", "_sliding_window_pattern",
    "query_pre_attn_scalar", "attn_logit_softcapping",
    "final_logit_softcapping",
})
# Keys that say nothing of what the network computes.
_WITHOUT_EFFECT = frozenset({
    "architectures", "torch_dtype", "dtype", "transformers_version",
    "_name_or_path", "name_or_path", "use_cache", "cache_implementation",
    "initializer_range", "attention_dropout", "hidden_act",
    "hidden_activation", "_attn_implementation", "attn_implementation",
    "auto_map", "is_llama_config", "transformers.js_config", "unsloth_fixed",
    "unsloth_version", "model_name", "task_specific_params", "id2label",
    "label2id", "problem_type", "return_dict", "chunk_size_feed_forward",
    "max_length",
})
# Keys of rotary scaling by kind, beside its own name and the base.
_ROPE_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {
        "factor", "low_freq_factor", "high_freq_factor",
        "original_max_position_embeddings",
    },
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor",
        "beta_fast", "beta_slow",
    },
}
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_SOFTCAPS = {
    "attn_logit_softcapping": "score_softcap",
    "final_logit_softcapping": "logit_softcap",
}


def read(
    raw: Mapping[str, Any], generation: Mapping[str, Any]
) -> model_config.ModelConfig:
  """Makes a configuration of config.json and generation_config.json.

  Raises:
    ValueError: a family, key or value is not supported.
    KeyError: a key is missing.
    TypeError: a value is of another type.
  """
  family = raw.get("model_type")
  if family not in families.FAMILIES:
    raise ValueError(
        f"model_type: expected one of {', '.join(families.FAMILIES)}, found "
        f"{family!r}; choose a model of a supported family."
    )
  _check_keys(raw, family)
  heads, gemma = raw["num_attention_heads"], family.startswith("gemma")
  head_dim = raw.get("head_dim")
  if head_dim is None and family in ("llama", "qwen2"):
    head_dim = raw["hidden_size"] // heads
  eos_ids = _ids(generation.get("eos_token_id", raw.get("eos_token_id")))
  pad_ids = _ids(raw.get("pad_token_id")) or eos_ids[:1] or (0,)
  bos_ids = _ids(raw.get("bos_token_id"))
  return model_config.ModelConfig(
      vocab_size=raw["vocab_size"],
      width=raw["hidden_size"],
      layers=raw["num_hidden_layers"],
      heads=heads,
      kv_heads=raw.get("num_key_value_heads") or heads,
      head_dim=raw["head_dim"] if head_dim is None else head_dim,
      mlp_width=raw["intermediate_size"],
      norm_epsilon=raw.get("rms_norm_eps", 1e-6),
      tied_embeddings=raw.get("tie_word_embeddings", gemma),
      context_length=raw["max_position_embeddings"],
      bos_id=bos_ids[0] if bos_ids else None,
      eos_ids=eos_ids,
      pad_id=pad_ids[0],
      family=family,
      score_divisor=float(raw["query_pre_attn_scalar"]) if gemma else None,
      **{field: float(raw.get(key) or 0) for key, field in _SOFTCAPS.items()},
      **_windows(raw, family),
      **_rope(raw, family),
  )


def _check_keys(raw: Mapping[str, Any], family: str) -> None:
  """Refuses values that nothing computes and keys that nobody knows."""
  fixed = _FIXED | _FIXED_BY_FAMILY[family]
  for key, supported in fixed.items():
    found = raw.get(key, supported)
    # Off is written as null too.
    if found != supported and (supported or found is not None):
      raise ValueError(
          f"{key}: expected {supported}, found {found!r}; choose a model "
          "without it."
      )
  known = _READ | _WITHOUT_EFFECT | fixed.keys()
  for key, value in raw.items():
    # None, False and empty are what a feature is that is not there.
    if key not in known and value not in (None, False, [], {}, ""):
      raise ValueError(
          f"{key}: expected no key of this name, found {value!r}; it may "
          "change what the network computes: choose another model, or remove "
          "the key if it does not."
      )


def _windows(raw: Mapping[str, Any], family: str) -> dict[str, Any]:
  """Returns the fields of local layers."""
  window, layers = raw.get("sliding_window"), raw["num_hidden_layers"]
  if family.startswith("qwen") and not raw.get("use_sliding_window"):
    window = None
  kinds = raw.get("layer_types")
  if kinds is None:
    first = raw.get("max_window_layers", layers)
    local = tuple(layer >= first for layer in range(layers))
    if family.startswith("gemma"):
      period = raw.get("sliding_window_pattern") or raw.get(
          "_sliding_window_pattern"
      ) or (2 if family == "gemma2" else 6)
      local = model_config.local_pattern(layers, period)
  else:
    for kind in kinds:
      if kind not in (_LOCAL, _GLOBAL):
        raise ValueError(
            f"layer_types: expected {_GLOBAL} or {_LOCAL}, found {kind!r}; "
            "choose a model without it."
        )
    local = tuple(kind == _LOCAL for kind in kinds)
  if window is None or not any(local):
    if kinds is not None and any(local):
      raise ValueError(
          f"layer_types: expected no {_LOCAL} without a sliding_window, found "
          f"{sum(local)}; take config.json from the model's own folder."
      )
    return {}
  return {"sliding_window": window, "local_layers": local}


def _rope(raw: Mapping[str, Any], family: str) -> dict[str, Any]:
  """Returns the fields of rotary positions."""
  rope = raw.get("rope_parameters") or {}
  by_kind = family == "gemma3_text"
  if by_kind:
    unknown = set(rope) - {_LOCAL, _GLOBAL}
    if unknown:
      raise ValueError(
          f"rope_parameters: expected {_GLOBAL} and {_LOCAL}, found "
          f"{min(unknown)!r}; choose a model without it."
      )
    local = rope.get(_LOCAL) or {}
    if _scaling(local, raw).kind != "none":
      raise ValueError(
          f"rope_parameters.{_LOCAL}: expected no scaling, found "
          f"{local['rope_type']!r}; choose a model without it."
      )
    rope = rope.get(_GLOBAL) or {}
  rope = rope | (raw.get("rope_scaling") or {})
  theta = raw.get("rope_theta") or rope.get("rope_theta") or (
      1e6 if by_kind else 1e4
  )
  fields = {"rope_theta": float(theta), "rope_scaling": _scaling(rope, raw)}
  if by_kind:
    fields["local_rope_theta"] = float(
        raw.get("rope_local_base_freq") or local.get("rope_theta") or 1e4
    )
  return fields


def _scaling(
    rope: Mapping[str, Any], raw: Mapping[str, Any]
) -> model_config.RopeScaling:
  kind = rope.get("rope_type", rope.get("type", "default"))
  if kind not in _ROPE_KEYS:
    raise ValueError(
        f"rope_type: expected one of {', '.join(_ROPE_KEYS)}, found {kind!r}; "
        "choose a model without it."
    )
  allowed = _ROPE_KEYS[kind] | {"rope_type", "type", "rope_theta"}
  for key, value in rope.items():
    harmless = key == "partial_rotary_factor" and value == 1.0
    if key not in allowed and value is not None and not harmless:
      raise ValueError(
          f"rope_scaling: expected no key {key} for {kind}, found {value!r}; "
          "choose a model without it."
      )
  if kind == "default":
    return model_config.RopeScaling()
  fields = {"kind": kind, "factor": float(rope["factor"])}
  if kind == "llama3":
    fields |= {
        "low_frequency_factor": float(rope["low_freq_factor"]),
        "high_frequency_factor": float(rope["high_freq_factor"]),
        "original_context_length": rope["original_max_position_embeddings"],
    }
  if kind == "yarn":
    length = rope.get("original_max_position_embeddings")
    magnitude = rope.get("attention_factor")
    fields |= {
        "original_context_length": length or raw["max_position_embeddings"],
        "fast_rotations": float(rope.get("beta_fast") or 32),
        "slow_rotations": float(rope.get("beta_slow") or 1),
        "magnitude": None if magnitude is None else float(magnitude),
    }
  return model_config.RopeScaling(**fields)


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
  """Turns one id, a list or None into a tuple; -1 means none."""
  if value is None:
    return ()
  values = value if isinstance(value, list) else [value]
  return tuple(dict.fromkeys(v for v in values if v >= 0))
