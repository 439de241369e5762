"""Reads a Hugging Face folder: config.json, safetensors, generation_config."""

import json
import os
import pathlib
from typing import Any

import ml_dtypes  # Names bfloat16 to numpy, which safetensors asks.
import numpy as np
import safetensors

from jaxrl_llm.models import config as model_config
from jaxrl_llm.models import hf_config
from jaxrl_llm.models import weight_layout
from jaxrl_llm.models import weight_source

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Names of safetensors dtypes that become float32 without loss.
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# Derived buffers that old checkpoints carry.
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"


def open_folder(path: str | os.PathLike[str]) -> weight_source.Source:
  """Opens a model: shapes are checked, weights are not read yet.

  Args:
    path: folder with config.json and model.safetensors (or its shards and
      index).

  Raises:
    FileNotFoundError: when a file is missing.
    ValueError: when the family, a setting, a dtype or a tensor does not fit.
  """
  folder = pathlib.Path(path)
  config = read_config(folder)
  files = _weight_files(folder)
  located = {}
  for file in files:
    for name, entry in _read_header(file).items():
      if not name.endswith(_IGNORED_SUFFIX):
        located[name] = (file, *entry)
  _check_index(folder, located)
  if config.tied_embeddings:
    _drop_tied_head(folder, located, config)
  config = config.with_stored_dtypes(
      {name: dtype for name, (_, _, dtype) in located.items()}
  )
  handles = {file: _open(file) for file in files}

  def read(tensor, index):
    name = tensor.name
    return handles[located[name][0]].get_slice(name)[index]

  return weight_source.open_files(
      config,
      weight_layout.hugging_face_names(config),
      {name: shape for name, (_, shape, _) in located.items()},
      read,
      str(folder),
  )


def read_config(path: str | os.PathLike[str]) -> model_config.ModelConfig:
  """Reads config.json and generation_config.json of a folder."""
  folder = pathlib.Path(path)
  file = folder / CONFIG_FILE
  raw = _read_json(file)
  generation = {}
  if (folder / GENERATION_CONFIG_FILE).exists():
    generation = _read_json(folder / GENERATION_CONFIG_FILE)
  try:
    return hf_config.read(raw, generation)
  except KeyError as error:
    raise ValueError(
        f"{file}: expected the key {error}, found none; take config.json "
        "from the model's own folder."
    ) from error
  except (TypeError, ValueError) as error:
    raise ValueError(f"{file}: {error}") from error


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
  if (folder / WEIGHTS_FILE).exists():
    return [folder / WEIGHTS_FILE]
  if not (folder / INDEX_FILE).exists():
    raise FileNotFoundError(
        f"{folder}: expected {WEIGHTS_FILE} or {INDEX_FILE}, found neither; "
        "save the model as safetensors."
    )
  names = sorted(set(_weight_map(folder).values()))
  for name in names:
    if not (folder / name).exists():
      raise FileNotFoundError(
          f"{folder / name}: expected a shard named by {INDEX_FILE}, found "
          "no file; copy it again."
      )
  return [folder / name for name in names]


def _weight_map(folder: pathlib.Path) -> dict[str, str]:
  index = _read_json(folder / INDEX_FILE)
  found = index.get("weight_map")
  if not isinstance(found, dict) or not all(
      isinstance(name, str) for name in found.values()
  ):
    raise ValueError(
        f"{folder / INDEX_FILE}: expected a weight_map with the name of each "
        "tensor's file, found none; copy the file again."
    )
  return found


def _check_index(folder: pathlib.Path, located: dict[str, Any]) -> None:
  """Refuses shards that do not hold what the index says."""
  if (folder / WEIGHTS_FILE).exists():
    return
  for name, file in _weight_map(folder).items():
    if name.endswith(_IGNORED_SUFFIX):
      continue
    if name not in located or located[name][0].name != file:
      raise ValueError(
          f"{folder / file}: expected the tensor {name} as {INDEX_FILE} says, "
          "found it missing; copy shards and index of one model."
      )


def _open(file: pathlib.Path) -> Any:
  try:
    return safetensors.safe_open(file, "np")
  except (safetensors.SafetensorError, OSError) as error:
    raise ValueError(
        f"{file}: expected a safetensors file, found a damaged one ({error}); "
        "copy it again."
    ) from error


def _read_header(
    file: pathlib.Path,
) -> dict[str, tuple[tuple[int, ...], str]]:
  """Returns name → (shape, dtype name) of one file."""
  entries = {}
  with _open(file) as handle:
    for name in handle.keys():
      view = handle.get_slice(name)
      if view.get_dtype() not in _DTYPES:
        raise ValueError(
            f"{file}: tensor {name}: expected dtype "
            f"{', '.join(_DTYPES)}, found {view.get_dtype()}; use the "
            "unquantized model."
        )
      entries[name] = (tuple(view.get_shape()), _DTYPES[view.get_dtype()])
  return entries


def _drop_tied_head(
    folder: pathlib.Path,
    located: dict[str, Any],
    config: model_config.ModelConfig,
) -> None:
  """Removes a head that only repeats the embedding; refuses another one."""
  names = weight_layout.hugging_face_names(config)
  head, embedding = names["head"], names["embedding"]
  if head not in located or embedding not in located:
    return
  arrays = [
      np.asarray(_open(located[name][0]).get_tensor(name))
      for name in (head, embedding)
  ]
  if not np.array_equal(arrays[0], arrays[1]):
    raise ValueError(
        f"{folder}: expected {head} equal to {embedding} as "
        "tie_word_embeddings says, found other values; set "
        "tie_word_embeddings to false in config.json."
    )
  del located[head]


def _read_json(file: pathlib.Path) -> dict[str, Any]:
  try:
    content = json.loads(file.read_text(encoding="utf-8"))
  except FileNotFoundError as error:
    raise FileNotFoundError(
        f"{file}: expected a file, found none; give a Hugging Face model "
        "folder."
    ) from error
  except ValueError as error:
    raise ValueError(
        f"{file}: expected JSON, found {error}; copy the file again."
    ) from error
  if not isinstance(content, dict):
    raise ValueError(
        f"{file}: expected a JSON object, found {type(content).__name__}; "
        "copy the file again."
    )
  return content
