"""Hugging Face folders: what is read, and what is refused in one line."""

import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jaxrl_llm.models import hf_import
from jaxrl_llm.models import weights

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
TIED = GOLDEN / "llama_tied"
UNTIED = GOLDEN / "llama_untied"
WEIGHTS = "model.safetensors"


@pytest.fixture(name="folder")
def _folder(tmp_path):
  """A copy of the untied model that a test may damage."""
  return shutil.copytree(UNTIED, tmp_path / "model", copy_function=shutil.copy)


def change_json(file, **changes):
  file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensors(folder, change):
  tensors = safetensors.numpy.load_file(folder / WEIGHTS)
  change(tensors)
  safetensors.numpy.save_file(tensors, folder / WEIGHTS)


def shard(folder, index_changes=()):
  """Splits the weights in two, as a large model is."""
  tensors = safetensors.numpy.load_file(folder / WEIGHTS)
  (folder / WEIGHTS).unlink()
  names = sorted(tensors)
  weight_map = {}
  for part, chosen in enumerate((names[::2], names[1::2])):
    file = f"model-{part + 1:05d}-of-00002.safetensors"
    safetensors.numpy.save_file({n: tensors[n] for n in chosen}, folder / file)
    weight_map |= dict.fromkeys(chosen, file)
  weight_map |= dict(index_changes)
  index = {"metadata": {}, "weight_map": weight_map}
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def refusal(folder, error=ValueError):
  """Returns the message of a refused folder; it must be one line."""
  with pytest.raises(error) as caught:
    weights.read(folder)
  message = str(caught.value)
  assert "\n" not in message
  return message


def flat(params):
  layers = params["layers"].items()
  top = [(k, v) for k, v in params.items() if k != "layers"]
  return dict([*top, *((f"layers/{k}", v) for k, v in layers)])


def test_config_and_tree():
  config, params = weights.read(UNTIED)
  assert config.rope_scaling.kind == "linear"
  assert (config.rope_scaling.factor, config.rope_theta) == (2.0, 500.0)
  assert config.eos_ids == (2,)
  assert config.stored_dtype == "float32"
  shapes = {name: array.shape for name, array in flat(params).items()}
  assert shapes == {
      "embedding": (96, 24),
      "layers/attention_norm": (2, 24),
      "layers/query": (2, 24, 6, 12),
      "layers/key": (2, 24, 2, 12),
      "layers/value": (2, 24, 2, 12),
      "layers/output": (2, 6, 12, 24),
      "layers/mlp_norm": (2, 24),
      "layers/gate": (2, 24, 40),
      "layers/up": (2, 24, 40),
      "layers/down": (2, 40, 24),
      "final_norm": (24,),
      "head": (24, 96),
  }
  assert {a.dtype for a in flat(params).values()} == {np.dtype(np.float32)}
  # One element by hand: head 3, feature 5 of q is row 3 · 12 + 5 of q_proj.
  stored = safetensors.numpy.load_file(UNTIED / WEIGHTS)
  row = stored["model.layers.1.self_attn.q_proj.weight"][41]
  np.testing.assert_array_equal(params["layers"]["query"][1, :, 3, 5], row)


def test_tied_llama3_bfloat16():
  config, params = weights.read(TIED)
  scaling = config.rope_scaling
  assert (scaling.kind, scaling.factor) == ("llama3", 8.0)
  assert scaling.original_context_length == 48
  assert config.eos_ids == (2, 3)
  assert config.stored_dtype == "bfloat16"
  assert config.tied_embeddings and "head" not in params


def test_shards_equal_a_single_file(folder):
  shard(folder)
  config, params = weights.read(folder)
  expected_config, expected = weights.read(UNTIED)
  assert config == expected_config
  for name, array in flat(expected).items():
    np.testing.assert_array_equal(flat(params)[name], array)


def test_special_ids(folder):
  file = folder / "generation_config.json"
  change_json(folder / "config.json", eos_token_id=5, pad_token_id=-1)
  change_json(file, eos_token_id=[7, 2, 7])
  config = hf_import.read_config(folder)
  assert (config.eos_ids, config.pad_id, config.bos_id) == ((7, 2), 7, 1)
  file.unlink()
  assert hf_import.read_config(folder).eos_ids == (5,)


def test_earlier_spelling_of_rotary_settings(folder):
  change_json(
      folder / "config.json",
      rope_parameters=None,
      rope_theta=300.0,
      rope_scaling={"type": "linear", "factor": 4.0},
  )
  config = hf_import.read_config(folder)
  assert config.rope_theta == 300.0
  assert (config.rope_scaling.kind, config.rope_scaling.factor) == (
      "linear", 4.0
  )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model_type": "qwen3_moe"}, ("model_type", "llama", "qwen3_moe")),
        ({"hidden_act": "gelu"}, ("hidden_act", "silu", "gelu")),
        ({"attention_bias": True}, ("attention_bias",)),
        ({"quantization_config": {"bits": 4}}, ("quantization_config",)),
        (
            {"rope_parameters": {"rope_type": "longrope", "factor": 2.0}},
            ("longrope", "linear"),
        ),
        ({"num_key_value_heads": 4}, ("kv_heads",)),
        ({"vocab_size": "many"}, ("config.json",)),
        ({"bos_token_id": 96}, ("special ids", "96")),
    ],
)
def test_refused_settings(folder, changes, words):
  change_json(folder / "config.json", **changes)
  message = refusal(folder)
  for word in words:
    assert word in message


def test_missing_key(folder):
  raw = json.loads((folder / "config.json").read_text())
  del raw["intermediate_size"]
  (folder / "config.json").write_text(json.dumps(raw))
  assert "intermediate_size" in refusal(folder)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
            ("21 tensors", "1 missing", "layers.1.mlp.up_proj"),
        ),
        (
            lambda t: t.update({"model.norm.bias": np.zeros(24, np.float32)}),
            ("1 more", "model.norm.bias"),
        ),
        (
            lambda t: t.update(
                {"lm_head.weight": np.zeros((24, 96), np.float32)}
            ),
            ("lm_head.weight", "[96, 24]", "[24, 96]"),
        ),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(24, np.int8)}),
            ("model.norm.weight", "I8", "unquantized"),
        ),
    ],
    ids=["missing", "extra", "shape", "dtype"],
)
def test_refused_tensors(folder, change, words):
  change_tensors(folder, change)
  message = refusal(folder)
  for word in words:
    assert word in message


def test_derived_rotary_buffer_is_ignored(folder):
  name = "model.layers.0.self_attn.rotary_emb.inv_freq"
  change_tensors(folder, lambda t: t.update({name: np.ones(6, np.float32)}))
  assert weights.read(folder)[0] == weights.read(UNTIED)[0]


def test_head_of_a_tied_model(tmp_path):
  folder = shutil.copytree(TIED, tmp_path / "model")
  embedding = "model.embed_tokens.weight"
  change_tensors(folder, lambda t: t.update({"lm_head.weight": t[embedding]}))
  assert weights.read(folder)[0] == weights.read(TIED)[0]
  change_tensors(
      folder,
      lambda t: t.update(
          {"lm_head.weight": np.ones((96, 32), ml_dtypes.bfloat16)}
      ),
  )
  assert "tie_word_embeddings" in refusal(folder)


def test_what_is_no_file_name_and_no_file(folder):
  shard(folder, [("model.norm.weight", 3)])
  assert "the name of each tensor's file" in refusal(folder)
  (folder / WEIGHTS).mkdir()
  assert f"{WEIGHTS}: expected a safetensors file" in refusal(folder)


def test_missing_and_damaged_files(folder, tmp_path):
  assert "nowhere" in refusal(tmp_path / "nowhere", FileNotFoundError)
  (tmp_path / "model.bin").write_bytes(b"x")
  assert ".gguf" in refusal(tmp_path / "model.bin")
  content = (folder / WEIGHTS).read_bytes()
  (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
  assert WEIGHTS in refusal(folder) and "damaged" in refusal(folder)
  (folder / WEIGHTS).unlink()
  assert WEIGHTS in refusal(folder, FileNotFoundError)
  (folder / "config.json").write_text("{")
  assert "config.json" in refusal(folder)
  (folder / "config.json").unlink()
  assert "config.json" in refusal(folder, FileNotFoundError)


def test_shards_that_do_not_fit_their_index(folder):
  # lm_head, the first name, lies in the first shard.
  shard(folder, {"lm_head.weight": "model-00002-of-00002.safetensors"})
  message = refusal(folder)
  assert "lm_head.weight" in message and "model-00002" in message
  (folder / "model-00001-of-00002.safetensors").unlink()
  assert "model-00001" in refusal(folder, FileNotFoundError)
