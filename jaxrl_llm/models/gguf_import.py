"""Reads a GGUF file: hyperparameters from metadata, weights dequantized.

llama.cpp rotates neighbouring features (2i, 2i + 1) of a llama, so its
converter interleaves the rows of q and k of each head; the importer undoes
that. Other families are rotated as here. Of Gemma's norms the file holds 1 + w.
"""

import functools
import math
import os
import pathlib
from typing import Any

import numpy as np

from jaxrl_llm.models import config as model_config
from jaxrl_llm.models import weight_layout
from jaxrl_llm.models import weight_source

_NAMES = {
    "embedding": "token_embd.weight",
    "layers/attention_norm": "blk.{layer}.attn_norm.weight",
    "layers/query": "blk.{layer}.attn_q.weight",
    "layers/key": "blk.{layer}.attn_k.weight",
    "layers/value": "blk.{layer}.attn_v.weight",
    "layers/output": "blk.{layer}.attn_output.weight",
    "layers/mlp_norm": "blk.{layer}.ffn_norm.weight",
    "layers/gate": "blk.{layer}.ffn_gate.weight",
    "layers/up": "blk.{layer}.ffn_up.weight",
    "layers/down": "blk.{layer}.ffn_down.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "layers/query_bias": "blk.{layer}.attn_q.bias",
    "layers/key_bias": "blk.{layer}.attn_k.bias",
    "layers/value_bias": "blk.{layer}.attn_v.bias",
    "layers/query_norm": "blk.{layer}.attn_q_norm.weight",
    "layers/key_norm": "blk.{layer}.attn_k_norm.weight",
    "layers/attention_post_norm": "blk.{layer}.post_attention_norm.weight",
    "layers/mlp_post_norm": "blk.{layer}.post_ffw_norm.weight",
}
# general.architecture → family.
_FAMILIES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
# What llama.cpp knows of a Gemma and no file says: every how many layers one
# reads everything, and the layers of the size whose scores are divided by the
# root of width / heads and not of the head's width.
_PERIODS = {"gemma2": 2, "gemma3": 6}
_LARGE = {"gemma2": 46, "gemma3": 62}
_LOCAL_THETA = 10000.0
_SCALING_KEYS = ("type", "factor", "original_context_length", "finetuned")
_ROPE_FACTORS = "rope_freqs.weight"

# Types whose values are stored as they are; any other is quantized.
_PLAIN_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# The file holds the divisors that llama3 scaling gives, not its settings. The
# models released with it share these; the divisors are checked against them.
_LLAMA3 = model_config.RopeScaling(
    kind="llama3",
    low_frequency_factor=1.0,
    high_frequency_factor=4.0,
    original_context_length=8192,
)


def open_file(path: str | os.PathLike[str]) -> weight_source.Source:
  """Opens a model: shapes are checked, weights are not read yet.

  Args:
    path: a .gguf file of a supported architecture, of any quantization that
      the gguf library knows.

  Raises:
    FileNotFoundError: when there is no such file.
    ImportError: when the gguf library is not installed.
    ValueError: when the file is damaged or of another kind of model.
  """
  reader = _open(pathlib.Path(path))
  tensors = {tensor.name: tensor for tensor in reader.tensors}
  config = _config(reader, tensors, path)
  tensors.pop(_ROPE_FACTORS, None)

  # The parts of a tensor are asked for in turn: it is dequantized once.
  @functools.lru_cache(maxsize=1)
  def whole(place):
    return _read(tensors[place.name], place, config, path)

  return weight_source.open_files(
      config,
      _NAMES,
      {name: _shape(tensor) for name, tensor in tensors.items()},
      lambda place, index: whole(place)[index],
      str(path),
  )


def _open(path: pathlib.Path) -> Any:
  try:
    import gguf  # An extra: only this kind of file needs it.
  except ImportError as error:
    raise ImportError(
        f"{path}: expected the gguf library, found none; "
        "pip install 'jaxrl_llm[gguf]'."
    ) from error
  if not path.is_file():
    raise FileNotFoundError(
        f"{path}: expected a GGUF file, found none; correct model.path."
    )
  try:
    return gguf.GGUFReader(path)
  except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
    raise ValueError(
        f"{path}: expected a GGUF file, found a damaged one ({error}); copy "
        "it again."
    ) from error


def _shape(tensor: Any) -> tuple[int, ...]:
  """GGUF lists the fastest axis first."""
  return tuple(int(size) for size in reversed(tensor.shape))


def _config(
    reader: Any, tensors: dict[str, Any], path: str | os.PathLike[str]
) -> model_config.ModelConfig:
  values = {
      name: field.contents()
      for name, field in reader.fields.items()
      if not name.startswith("tokenizer.") or name.endswith("token_id")
  }
  found = values.get("general.architecture")
  if found not in _FAMILIES or values.get(f"{found}.expert_count", 0):
    raise ValueError(
        f"{path}: general.architecture: expected a dense one of "
        f"{', '.join(_FAMILIES)}, found {found} with "
        f"{values.get(f'{found}.expert_count', 0)} experts; choose a model of "
        "a supported family."
    )
  if _NAMES["embedding"] not in tensors:
    raise ValueError(
        f"{path}: expected the tensor {_NAMES['embedding']}, found none; "
        "give the file (or the first part) that holds the weights."
    )
  try:
    config = _hyperparameters(values, tensors)
  except KeyError as error:
    raise ValueError(
        f"{path}: expected the metadata key {found}.{error.args[0]}, found "
        "none; convert the model again."
    ) from error
  except (TypeError, ValueError) as error:
    raise ValueError(f"{path}: {error}") from error
  names = weight_layout.hugging_face_names(config)
  places = zip(
      weight_layout.tensors(config, _NAMES),
      weight_layout.tensors(config, names),
      strict=True,
  )
  return config.with_stored_dtypes({
      there.name: _PLAIN_TYPES.get(tensors[here.name].tensor_type.name,
                                   "float32")
      for here, there in places
      if here.name in tensors
  })


def _hyperparameters(
    values: dict[str, Any], tensors: dict[str, Any]
) -> model_config.ModelConfig:
  kind = values["general.architecture"]
  own = {
      name.removeprefix(f"{kind}."): value for name, value in values.items()
      if name.startswith(f"{kind}.")
  }
  width, heads = own["embedding_length"], own["attention.head_count"]
  head_dim = own.get("attention.key_length", width // heads)
  for key in ("rope.dimension_count", "attention.value_length"):
    if own.get(key, head_dim) != head_dim:
      raise ValueError(
          f"{kind}.{key}: expected {head_dim} (the head's width), found "
          f"{own[key]}; choose a model without it."
      )
  theta = _float32(own.get("rope.freq_base", 10000.0))
  eos_ids = tuple(dict.fromkeys(
      values[key]
      for key in (
          "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"
      )
      if key in values
  ))
  pad_id = values.get("tokenizer.ggml.padding_token_id", (*eos_ids, 0)[0])
  return model_config.ModelConfig(
      vocab_size=_shape(tensors[_NAMES["embedding"]])[0],
      width=width,
      layers=own["block_count"],
      heads=heads,
      kv_heads=own.get("attention.head_count_kv", heads),
      head_dim=head_dim,
      mlp_width=own["feed_forward_length"],
      rope_theta=theta,
      rope_scaling=_rope_scaling(kind, own, tensors, theta, head_dim),
      norm_epsilon=_float32(own["attention.layer_norm_rms_epsilon"]),
      tied_embeddings=_NAMES["head"] not in tensors,
      context_length=own["context_length"],
      bos_id=values.get("tokenizer.ggml.bos_token_id"),
      eos_ids=eos_ids,
      pad_id=pad_id,
      family=_FAMILIES[kind],
      **_of_gemma(kind, own, head_dim),
  )


def _of_gemma(
    kind: str, own: dict[str, Any], head_dim: int
) -> dict[str, Any]:
  """Returns the fields that Gemma's layers add."""
  window = own.get("attention.sliding_window", 0)
  if kind not in _PERIODS:
    if window:
      raise ValueError(
          f"{kind}.attention.sliding_window: expected none, found {window}; "
          "import the Hugging Face folder instead."
      )
    return {}
  layers, divisor = own["block_count"], head_dim
  if layers == _LARGE[kind]:
    divisor = own["embedding_length"] / own["attention.head_count"]
  fields = {
      "score_divisor": float(divisor),
      "score_softcap": _float32(own.get("attn_logit_softcapping", 0.0)),
      "logit_softcap": _float32(own.get("final_logit_softcapping", 0.0)),
  }
  if kind == "gemma3":
    local = own.get("rope.freq_base_swa", _LOCAL_THETA)
    fields["local_rope_theta"] = _float32(local)
  if not window:
    raise KeyError("attention.sliding_window")
  return fields | {
      "sliding_window": window,
      "local_layers": model_config.local_pattern(layers, _PERIODS[kind]),
  }


def _float32(value: float) -> float:
  """Gives the shortest number of the same float32: 1e-05, not 9.9999997e-06."""
  return float(str(np.float32(value)))


def _rope_scaling(
    architecture: str,
    own: dict[str, Any],
    tensors: dict[str, Any],
    theta: float,
    head_dim: int,
) -> model_config.RopeScaling:
  if _ROPE_FACTORS in tensors:
    return _llama3_scaling(tensors[_ROPE_FACTORS].data, theta, head_dim)
  prefix = "rope.scaling."
  kind = own.get(f"{prefix}type", "none")
  if kind == "none":
    return model_config.RopeScaling()
  for name in own:
    key = name.removeprefix(prefix)
    if name.startswith(prefix) and key not in _SCALING_KEYS:
      raise ValueError(
          f"{architecture}.{name}: expected no key of this name, found "
          f"{own[name]}; import the Hugging Face folder instead."
      )
  fields = {"kind": kind, "factor": _float32(own.get(f"{prefix}factor", 1.0))}
  if kind == "yarn":
    length = own[f"{prefix}original_context_length"]
    fields["original_context_length"] = length
  return model_config.RopeScaling(**fields)


def _llama3_scaling(
    divisors: np.ndarray, theta: float, head_dim: int
) -> model_config.RopeScaling:
  """Recovers llama3 scaling from the divisors of the frequencies [H/2]."""
  factor = float(divisors.max())
  wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
  low, high = _LLAMA3.low_frequency_factor, _LLAMA3.high_frequency_factor
  smooth = (_LLAMA3.original_context_length / wavelengths - low) / (high - low)
  smooth = np.clip(smooth, 0.0, 1.0)
  expected = 1.0 / ((1.0 - smooth) / factor + smooth)
  if divisors.shape != expected.shape or not np.allclose(
      divisors, expected, rtol=1e-4
  ):
    raise ValueError(
        f"{_ROPE_FACTORS}: expected the divisors of llama3 scaling with low "
        f"{low}, high {high} and {_LLAMA3.original_context_length} original "
        f"tokens, found others (largest {factor}); import the Hugging Face "
        "folder instead."
    )
  return model_config.RopeScaling(
      kind="llama3",
      factor=factor,
      low_frequency_factor=low,
      high_frequency_factor=high,
      original_context_length=_LLAMA3.original_context_length,
  )


def _read(
    tensor: Any,
    place: weight_layout.Tensor,
    config: model_config.ModelConfig,
    path: str | os.PathLike[str],
) -> np.ndarray:
  """Dequantizes to float32 [out, in] with half-split rotary pairs."""
  import gguf

  try:
    array = gguf.dequantize(tensor.data, tensor.tensor_type)
  except NotImplementedError as error:
    raise ValueError(
        f"{path}: tensor {tensor.name}: expected a quantization that the gguf "
        f"library knows, found {tensor.tensor_type.name}; use another file of "
        "the model."
    ) from error
  array = array.reshape(place.file_shape)
  if config.block.offset_norms and place.leaf.endswith("norm"):
    return array - 1.0
  interleaved = place.leaf in ("layers/query", "layers/key")
  if config.family != "llama" or not interleaved:
    return array
  heads = place.shape[1]
  pairs = array.reshape(heads, config.head_dim // 2, 2, config.width)
  return pairs.swapaxes(1, 2).reshape(place.file_shape)
