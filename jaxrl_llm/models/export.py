"""Writes a Hugging Face folder that `transformers` and this package load."""

from collections.abc import Iterator, Mapping
import contextlib
import json
import os
import pathlib
import shutil
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from jaxrl_llm.models import config as model_config
from jaxrl_llm.models import hf_config_writing
from jaxrl_llm.models import hf_import
from jaxrl_llm.models import weight_layout

MAX_FILE_BYTES = 5 * 10**9
_DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def check_target(folder: pathlib.Path) -> None:
  """Refuses a folder that `save` would not write to.

  Raises:
    FileExistsError: there is something in it.
  """
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise FileExistsError(
        f"{folder}: expected no folder or an empty one, found something in "
        "it; remove it or choose another path."
    )


def save(
    path: str | os.PathLike[str],
    config: model_config.ModelConfig,
    params: Mapping[str, Any],
    tokenizer_files: Mapping[str, bytes],
    *,
    dtype: str = "",
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
  """Writes a model beside its place and renames it when it is complete.

  Args:
    path: folder to create; it must not exist, or be empty.
    config: shape of the network.
    params: float32 parameter tree, layers stacked on axis 0.
    tokenizer_files: file name → content, put beside the weights.
    dtype: round every tensor to float32, bfloat16 or float16. Empty gives
      each tensor the dtype of the file it came from where that loses no bit,
      else float32: unchanged weights come out bit-identical, trained ones
      exact.
    max_file_bytes: weights beyond it are split over several files.

  Raises:
    FileExistsError: when the folder holds anything.
    ValueError: when the dtype is unknown or the weights are not `config`'s.
  """
  folder = pathlib.Path(path)
  if dtype and dtype not in _DTYPES:
    raise ValueError(
        f"dtype: expected one of {', '.join(_DTYPES)} or empty, found "
        f"{dtype!r}; correct it."
    )
  check_target(folder)
  _check_shapes(config, params)
  with folder_of(folder) as partial:
    for name, content in tokenizer_files.items():
      _write(partial / name, content)
    special_ids = hf_config_writing.special_ids(config)
    write_json(partial / hf_import.GENERATION_CONFIG_FILE, special_ids)
    raw = hf_config_writing.write(config, dtype or config.stored_dtype)
    write_json(partial / hf_import.CONFIG_FILE, raw)
    _write_weights(partial, config, params, dtype, max_file_bytes)


@contextlib.contextmanager
def folder_of(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a folder to fill, which becomes `folder` when it is complete.

  Raises:
    FileExistsError: there is something in `folder`.
  """
  check_target(folder)
  folder.parent.mkdir(parents=True, exist_ok=True)
  partial = folder.with_name(folder.name + ".partial")
  shutil.rmtree(partial, ignore_errors=True)  # Of a run that was killed.
  partial.mkdir()
  yield partial
  os.replace(partial, folder)


def _check_shapes(
    config: model_config.ModelConfig, params: Mapping[str, Any]
) -> None:
  for leaf, shape in weight_layout.shapes(config).items():
    found = np.shape(weight_layout.leaf_of(params, leaf))
    if found != shape:
      raise ValueError(
          f"{leaf}: expected shape {list(shape)}, found {list(found)}; the "
          "parameters and the configuration are of different models."
      )


def _stored(
    array: np.ndarray, name: str, config: model_config.ModelConfig, dtype: str
) -> np.ndarray:
  """Gives a tensor the dtype that the file gets."""
  if dtype:
    return np.ascontiguousarray(array, _DTYPES[dtype])
  exceptions = dict(config.stored_dtype_exceptions)
  source = exceptions.get(name, config.stored_dtype)
  exact = np.ascontiguousarray(array, np.float32)
  with np.errstate(over="ignore"):  # Too large for float16: not lossless.
    rounded = exact.astype(_DTYPES[source])
  restored = rounded.astype(np.float32)
  if np.array_equal(restored.view(np.uint32), exact.view(np.uint32)):
    return rounded
  return exact


def _write_weights(
    folder: pathlib.Path,
    config: model_config.ModelConfig,
    params: Mapping[str, Any],
    dtype: str,
    max_file_bytes: int,
) -> None:
  names = weight_layout.hugging_face_names(config)
  shards = [{}]
  room = max_file_bytes
  for tensor in weight_layout.tensors(config, names):
    leaf = np.asarray(weight_layout.leaf_of(params, tensor.leaf))
    parameter = leaf if tensor.layer is None else leaf[tensor.layer]
    array = _stored(tensor.to_file(parameter), tensor.name, config, dtype)
    if array.nbytes > room and shards[-1]:
      shards.append({})
      room = max_file_bytes
    room -= array.nbytes
    shards[-1][tensor.name] = array
  if len(shards) == 1:
    _write_shard(folder / hf_import.WEIGHTS_FILE, shards[0])
    return
  weight_map = {}
  for index, shard in enumerate(shards):
    file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
    _write_shard(folder / file, shard)
    weight_map |= dict.fromkeys(shard, file)
  total = sum(array.nbytes for shard in shards for array in shard.values())
  write_json(folder / hf_import.INDEX_FILE, {
      "metadata": {"total_size": total}, "weight_map": weight_map,
  })


def _write_shard(file: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
  safetensors.numpy.save_file(arrays, file, metadata={"format": "pt"})
  # The library lets nobody but the owner read; other files follow the umask.
  shutil.copymode(file.with_name(hf_import.CONFIG_FILE), file)
  with open(file, "rb") as handle:
    os.fsync(handle.fileno())


def write_json(file: pathlib.Path, content: dict[str, Any]) -> None:
  """Writes JSON, and waits until it is on the disk."""
  _write(file, (json.dumps(content, indent=2) + "\n").encode())


def _write(file: pathlib.Path, content: bytes) -> None:
  with open(file, "wb") as handle:
    handle.write(content)
    handle.flush()
    os.fsync(handle.fileno())
