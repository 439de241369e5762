"""Exports: bit-identical, lossless, atomic. (By hand: transformers loads one.)

make_families.py's environment loads an export of each fixture with no missing
or unexpected key, identical tensors and identical logits.
"""

import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jaxrl_llm.models import export
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import weights

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
TIED = GOLDEN / "llama_tied"
UNTIED = GOLDEN / "llama_untied"
WEIGHTS = "model.safetensors"


def raw_tensors(folder):
  """Returns name → (dtype, shape, bytes)."""
  tensors = safetensors.numpy.load_file(folder / WEIGHTS)
  return {n: (x.dtype, x.shape, x.tobytes()) for n, x in tensors.items()}


def mixed(tmp_path):
  """A bfloat16 model whose norms are float32 and whose values are float16."""
  folder = shutil.copytree(TIED, tmp_path / "mixed")
  tensors = safetensors.numpy.load_file(folder / WEIGHTS)
  for name in tensors:
    if "norm" in name:
      tensors[name] = tensors[name].astype(np.float32)
    if "v_proj" in name:
      tensors[name] = tensors[name].astype(np.float16)
  safetensors.numpy.save_file(tensors, folder / WEIGHTS)
  return folder


@pytest.mark.parametrize("kind", [
    "llama_tied", "llama_untied", "mixed", "qwen2", "qwen2_yarn", "qwen3",
    "gemma2", "gemma3",
])
def test_import_then_export_is_bit_identical(tmp_path, kind):
  source = mixed(tmp_path) if kind == "mixed" else GOLDEN / kind
  config, params = weights.read(source)
  export.save(tmp_path / "out", config, params, {})
  assert raw_tensors(tmp_path / "out") == raw_tensors(source)
  assert weights.read(tmp_path / "out")[0] == config


def test_folder_as_transformers_wants_it(tmp_path):
  settings = policy_lib.ModelSettings(
      path="", preset="tiny", tokenizer="", compute_dtype="float32",
      remat="none",
  )
  policy, params = policy_lib.load(TIED, settings)
  policy_lib.save(tmp_path / "a/out", policy, params, {"tokenizer.json": b"{}"})
  out = tmp_path / "a/out"
  assert sorted(file.name for file in out.iterdir()) == [
      "config.json", "generation_config.json", WEIGHTS, "tokenizer.json",
  ]
  assert (out / "tokenizer.json").read_bytes() == b"{}"
  raw = json.loads((out / "config.json").read_text())
  assert raw["architectures"] == ["LlamaForCausalLM"]
  assert raw["rope_scaling"] == {
      "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 48,
  }
  assert (raw["eos_token_id"], raw["torch_dtype"]) == ([2, 3], "bfloat16")
  mode = (out / WEIGHTS).stat().st_mode
  assert mode == (out / "config.json").stat().st_mode
  with open(out / WEIGHTS, "rb") as file:
    assert b'"format":"pt"' in file.read(200)


def test_trained_weights_lose_nothing(tmp_path):
  config, params = weights.read(TIED)
  trained = np.float32(0.02) - np.float32(1e-6)  # 0.02 in bfloat16.
  params["layers"]["gate"][1, 3, 4] = trained
  export.save(tmp_path / "out", config, params, {})
  tensors = safetensors.numpy.load_file(tmp_path / "out" / WEIGHTS)
  changed = tensors["model.layers.1.mlp.gate_proj.weight"]
  assert changed.dtype == np.float32 and changed[4, 3] == trained
  same = tensors["model.layers.0.mlp.gate_proj.weight"]
  assert same.dtype == ml_dtypes.bfloat16
  again = weights.read(tmp_path / "out")[1]
  np.testing.assert_array_equal(
      again["layers"]["gate"], params["layers"]["gate"]
  )

  export.save(tmp_path / "rounded", config, params, {}, dtype="bfloat16")
  tensors = safetensors.numpy.load_file(tmp_path / "rounded" / WEIGHTS)
  assert {x.dtype for x in tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}


def test_values_beyond_float16_stay_exact(tmp_path):
  config, params = weights.read(UNTIED)
  params["final_norm"][0] = 1e6
  export.save(
      tmp_path / "out", config.replace(stored_dtype="float16"), params, {}
  )
  tensors = safetensors.numpy.load_file(tmp_path / "out" / WEIGHTS)
  assert tensors["model.norm.weight"][0] == 1e6


def test_large_models_are_split(tmp_path):
  config, params = weights.read(UNTIED)
  export.save(tmp_path / "out", config, params, {}, max_file_bytes=20_000)
  out = tmp_path / "out"
  files = sorted(out.glob("*.safetensors"))
  assert len(files) > 2
  assert all(file.stat().st_size < 22_000 for file in files)
  index = json.loads((out / "model.safetensors.index.json").read_text())
  merged = {}
  for file in files:
    tensors = safetensors.numpy.load_file(file)
    assert all(index["weight_map"][name] == file.name for name in tensors)
    merged |= tensors
  assert index["metadata"]["total_size"] == sum(
      x.nbytes for x in merged.values()
  )
  again = weights.read(out)[1]
  np.testing.assert_array_equal(again["head"], params["head"])


def test_an_interrupted_export_leaves_no_folder(tmp_path, monkeypatch):
  config, params = weights.read(UNTIED)

  def full_disk(*unused_args, **unused_kwargs):
    raise OSError("no space left")

  with monkeypatch.context() as patch:
    patch.setattr(safetensors.numpy, "save_file", full_disk)
    with pytest.raises(OSError):
      export.save(tmp_path / "out", config, params, {})
  assert not (tmp_path / "out").exists()
  export.save(tmp_path / "out", config, params, {})
  assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_refusals(tmp_path):
  config, params = weights.read(UNTIED)
  (tmp_path / "kept").mkdir()
  (tmp_path / "kept/notes.txt").write_text("mine")
  with pytest.raises(FileExistsError, match="kept: expected no folder"):
    export.save(tmp_path / "kept", config, params, {})
  assert (tmp_path / "kept/notes.txt").read_text() == "mine"
  with pytest.raises(ValueError, match="dtype: expected one of float32"):
    export.save(tmp_path / "out", config, params, {}, dtype="int4")
  params["final_norm"] = params["final_norm"][:-1]
  with pytest.raises(ValueError, match=r"final_norm: expected shape \[24\]"):
    export.save(tmp_path / "out", config, params, {})
  assert not (tmp_path / "out").exists()
