"""GGUF files, written here as llama.cpp's converter writes them."""

import math
import pathlib
import sys

import gguf
import numpy as np
import pytest
import safetensors.numpy

from jaxrl_llm.models import export
from jaxrl_llm.models import gguf_import
from jaxrl_llm.models import weights

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
UNTIED = GOLDEN / "llama_untied"
TIED = GOLDEN / "llama_tied"

NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
# Of families with norms after attention and MLP.
POST_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name, gemma=False):
  names = NAMES | POST_NAMES if gemma else NAMES
  stem, _, kind = name.rpartition(".")
  if not stem.startswith("model.layers."):
    return f"{names[stem]}.{kind}"
  layer, _, rest = stem.removeprefix("model.layers.").partition(".")
  return f"blk.{layer}.{names[rest]}.{kind}"


def interleave(array, heads):
  """`permute` of llama.cpp's convert_hf_to_gguf.py."""
  return (
      array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
      .swapaxes(1, 2)
      .reshape(array.shape)
  )


def write(
    path, source, *, kind=None, metadata=(), extra=(), rope_divisors=(),
    architecture="llama",
):
  """Writes the model of a Hugging Face folder as GGUF; None drops a key."""
  config, _ = weights.read(source)
  writer = gguf.GGUFWriter(path, architecture)
  keys = {
      "llama.block_count": config.layers,
      "llama.context_length": config.context_length,
      "llama.embedding_length": config.width,
      "llama.feed_forward_length": config.mlp_width,
      "llama.attention.head_count": config.heads,
      "llama.attention.head_count_kv": config.kv_heads,
      "llama.attention.key_length": config.head_dim,
      "llama.attention.value_length": config.head_dim,
      "llama.rope.dimension_count": config.head_dim,
      "llama.rope.freq_base": config.rope_theta,
      "llama.attention.layer_norm_rms_epsilon": config.norm_epsilon,
      "tokenizer.ggml.bos_token_id": config.bos_id,
      "tokenizer.ggml.eos_token_id": config.eos_ids[0],
      "tokenizer.ggml.padding_token_id": config.pad_id,
  }
  if len(config.eos_ids) > 1:
    keys["tokenizer.ggml.eot_token_id"] = config.eos_ids[1]
  keys = {
      name.replace("llama.", f"{architecture}."): value
      for name, value in (keys | dict(metadata)).items()
  }
  for key, value in keys.items():
    if isinstance(value, str):
      writer.add_string(key, value)
    elif isinstance(value, float):
      writer.add_float32(key, value)
    elif value is not None:
      writer.add_uint32(key, value)
  tensors = safetensors.numpy.load_file(source / "model.safetensors")
  for name, array in tensors.items():
    array = array.astype(np.float32)
    gemma = architecture.startswith("gemma")
    if "q_proj" in name and architecture == "llama":
      array = interleave(array, config.heads)
    if "k_proj" in name and architecture == "llama":
      array = interleave(array, config.kv_heads)
    if gemma and name.endswith("norm.weight"):
      array = array + 1
    name = gguf_name(name, gemma)
    if kind is None or array.ndim == 1:
      writer.add_tensor(name, array)
    else:
      data = gguf.quantize(array, kind)
      writer.add_tensor(name, data, raw_dtype=kind)
  for name, array in dict(extra).items():
    writer.add_tensor(name, array)
  if len(rope_divisors):
    divisors = np.asarray(rope_divisors, np.float32)
    writer.add_tensor("rope_freqs.weight", divisors)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def refusal(path, error=ValueError):
  with pytest.raises(error) as caught:
    weights.read(path)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def assert_trees_close(actual, expected, atol):
  assert actual.keys() == expected.keys()
  for name, array in expected.items():
    if name == "layers":
      assert_trees_close(actual[name], array, atol)
    else:
      np.testing.assert_allclose(
          actual[name], array, atol=atol, rtol=0, err_msg=name
      )


def test_equals_the_hugging_face_folder(tmp_path):
  path = write(
      tmp_path / "model.gguf", UNTIED,
      metadata={
          "llama.rope.scaling.type": "linear",
          "llama.rope.scaling.factor": 2.0,
      },
  )
  config, params = weights.read(path)
  expected_config, expected = weights.read(UNTIED)
  assert config == expected_config
  assert_trees_close(params, expected, atol=0.0)


GEMMA = {"llama.attention.sliding_window": 7}


@pytest.mark.parametrize("source, architecture, metadata, local, divisor", [
    ("qwen2", "qwen2", {}, (), None),
    ("qwen3", "qwen3", {}, (), None),
    (
        "gemma2", "gemma2",
        GEMMA | {"llama.attn_logit_softcapping": 2.0,
                 "llama.final_logit_softcapping": 3.0},
        (True, False, True), 12.0,
    ),
    # llama.cpp knows one pattern: every sixth layer reads everything.
    (
        "gemma3", "gemma3",
        GEMMA | {"llama.rope.freq_base_swa": 50.0,
                 "llama.rope.scaling.type": "linear",
                 "llama.rope.scaling.factor": 4.0},
        (True,) * 4, 12.0,
    ),
])
def test_other_families_equal_the_hugging_face_folder(
    tmp_path, source, architecture, metadata, local, divisor
):
  path = write(
      tmp_path / "model.gguf", GOLDEN / source, metadata=metadata,
      architecture=architecture,
  )
  config, params = weights.read(path)
  expected_config, expected = weights.read(GOLDEN / source)
  expected_config = expected_config.replace(
      local_layers=local, score_divisor=divisor, stored_dtype="float32",
      stored_dtype_exceptions=(),
  )
  assert config == expected_config
  # 1 + w is rounded where it is stored.
  assert_trees_close(params, expected, atol=1e-6 if divisor else 0.0)


def test_the_largest_gemma_divides_scores_by_width_over_heads(
    tmp_path, monkeypatch
):
  monkeypatch.setitem(gguf_import._LARGE, "gemma3", 4)
  path = write(
      tmp_path / "model.gguf", GOLDEN / "gemma3", metadata=GEMMA,
      architecture="gemma3",
  )
  config, _ = weights.read(path)
  assert config.score_divisor == 32 / 4
  assert config.local_rope_theta == 10000.0


@pytest.mark.parametrize(
    "kind, atol", [("F16", 2e-3), ("Q8_0", 2e-2), ("Q4_1", 0.3)]
)
def test_quantized(tmp_path, kind, atol):
  # Q4_1 keeps 16 levels between a block's extremes, ±4 σ of σ = 1 at most.
  kind = gguf.GGMLQuantizationType[kind]
  source = tmp_path / "source"
  # Blocks are of 32 weights: a model whose every width is a multiple.
  config, params = weights.read(TIED)
  config = config.replace(mlp_width=32, stored_dtype="float32")
  for name in ("gate", "up"):
    params["layers"][name] = params["layers"][name][..., :32]
  params["layers"]["down"] = params["layers"]["down"][:, :32]
  export.save(source, config, params, {})
  path = write(tmp_path / "model.gguf", source, kind=kind)
  found, read = weights.read(path)
  assert_trees_close(read, params, atol)
  assert found.tied_embeddings and "head" not in read
  plain = kind == gguf.GGMLQuantizationType.F16
  assert found.stored_dtype == ("float16" if plain else "float32")


def llama3_divisors(theta, head_dim, factor, original=8192):
  """As convert_hf_to_gguf.py computes them, with low 1 and high 4."""
  divisors = []
  for i in range(0, head_dim, 2):
    wavelength = 2 * math.pi * theta ** (i / head_dim)
    if wavelength < original / 4.0:
      divisors.append(1.0)
    elif wavelength > original:
      divisors.append(factor)
    else:
      smooth = (original / wavelength - 1.0) / (4.0 - 1.0)
      divisors.append(1 / ((1 - smooth) / factor + smooth))
  return divisors


def test_llama3_scaling_is_recovered(tmp_path):
  # Wavelengths 6, 167, 4443 and 118146: one divisor lies between 1 and 32.
  divisors = llama3_divisors(500_000.0, 8, 32.0)
  assert divisors[0] == 1.0 and divisors[3] == 32.0
  assert 1.0 < divisors[2] < 32.0
  theta = {"llama.rope.freq_base": 500_000.0}
  path = write(
      tmp_path / "a.gguf", TIED, metadata=theta, rope_divisors=divisors
  )
  scaling = weights.read(path)[0].rope_scaling
  assert (scaling.kind, scaling.factor) == ("llama3", 32.0)
  assert scaling.original_context_length == 8192
  divisors[2] += 0.1
  path = write(
      tmp_path / "b.gguf", TIED, metadata=theta, rope_divisors=divisors
  )
  assert "rope_freqs.weight" in refusal(path)


@pytest.mark.parametrize(
    "metadata, words",
    [
        ({"general.architecture": "qwen2moe"}, ("architecture", "qwen2moe")),
        ({"llama.expert_count": 8}, ("8 experts",)),
        ({"llama.block_count": None}, ("llama.block_count",)),
        ({"llama.block_count": 3}, ("missing", "blk.2.")),
        ({"llama.block_count": 1}, ("more", "blk.1.")),
        ({"llama.embedding_length": 48}, ("expected shape",)),
        ({"llama.rope.dimension_count": 6}, ("rope.dimension_count",)),
        ({"llama.rope.scaling.type": "longrope"}, ("longrope",)),
        (
            {"llama.rope.scaling.type": "yarn",
             "llama.rope.scaling.original_context_length": 32,
             "llama.rope.scaling.yarn_beta_fast": 4.0},
            ("yarn_beta_fast",),
        ),
        ({"llama.attention.sliding_window": 8}, ("sliding_window",)),
    ],
)
def test_refused_metadata(tmp_path, metadata, words):
  path = write(tmp_path / "model.gguf", UNTIED, metadata=metadata)
  message = refusal(path)
  for word in words:
    assert word in message


def test_refused_files(tmp_path):
  bias = {"blk.0.attn_q.bias": np.zeros(72, np.float32)}
  path = write(tmp_path / "model.gguf", UNTIED, extra=bias)
  assert "blk.0.attn_q.bias" in refusal(path)
  assert "none.gguf" in refusal(tmp_path / "none.gguf", FileNotFoundError)
  content = path.read_bytes()
  for size in (0, 3, 100, 1000, len(content) - 50_000):
    path.write_bytes(content[:size])
    assert "damaged" in refusal(path), size


def test_library_not_installed(tmp_path, monkeypatch):
  path = write(tmp_path / "model.gguf", UNTIED)
  monkeypatch.setitem(sys.modules, "gguf", None)
  assert "jaxrl_llm[gguf]" in refusal(path, ImportError)
