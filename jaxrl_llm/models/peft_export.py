"""Writes adapters as a folder that PEFT loads, beside the model it adapts."""

import os
import pathlib
import shutil
from typing import Any

import numpy as np
import safetensors.numpy

from jaxrl_llm import types
from jaxrl_llm.models import config as model_config
from jaxrl_llm.models import export
from jaxrl_llm.models import lora as lora_lib
from jaxrl_llm.models import weight_layout

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


def save(
    path: str | os.PathLike[str],
    config: model_config.ModelConfig,
    lora: lora_lib.Lora,
    adapters: types.PyTree,
    base_name: str,
) -> None:
  """Writes the folder beside its place and renames it when it is complete.

  Args:
    path: folder to create; it must not exist, or be empty.
    config: shape of the network.
    lora: of the adapters.
    adapters: float32 arrays (see lora.py).
    base_name: of the model that is adapted, as transformers would load it.

  Raises:
    FileExistsError: when the folder holds anything.
  """
  folder = pathlib.Path(path)
  with export.folder_of(folder) as partial:
    raw = _raw_config(config, lora, base_name)
    export.write_json(partial / CONFIG_FILE, raw)
    file = partial / WEIGHTS_FILE
    arrays = tensors(config, lora, adapters)
    safetensors.numpy.save_file(arrays, file, metadata={"format": "pt"})
    # The library lets nobody but the owner read; other files follow the umask.
    shutil.copymode(partial / CONFIG_FILE, file)
    with open(file, "rb") as handle:
      os.fsync(handle.fileno())


def tensors(
    config: model_config.ModelConfig,
    lora: lora_lib.Lora,
    adapters: types.PyTree,
) -> dict[str, np.ndarray]:
  """Returns PEFT's tensors: lora_A [R, in] and lora_B [out, R] per matrix."""
  names, found = weight_layout.hugging_face_names(config), {}
  for target in lora.targets:
    a, b = (np.asarray(adapters[f"{target}_{part}"]) for part in "ab")
    stem = names[f"layers/{target}"].removesuffix(".weight")
    for layer in range(config.layers):
      name = f"base_model.model.{stem.format(layer=layer)}"
      for part, array, shape in (
          ("A", a[layer], (-1, lora.rank)), ("B", b[layer], (lora.rank, -1))
      ):
        array = np.ascontiguousarray(array.reshape(shape).T, np.float32)
        found[f"{name}.lora_{part}.weight"] = array
  return found


def _raw_config(
    config: model_config.ModelConfig, lora: lora_lib.Lora, base_name: str
) -> dict[str, Any]:
  names = weight_layout.hugging_face_names(config)
  modules = [
      names[f"layers/{target}"].split(".")[-2] for target in lora.targets
  ]
  return {
      "peft_type": "LORA",
      "task_type": "CAUSAL_LM",
      "base_model_name_or_path": base_name,
      "r": lora.rank,
      "lora_alpha": lora.alpha,
      "target_modules": modules,
      "lora_dropout": 0.0,
      "bias": "none",
      "fan_in_fan_out": False,
      "use_rslora": False,
      "use_dora": False,
      "init_lora_weights": True,
      "inference_mode": True,
      "modules_to_save": None,
      "rank_pattern": {},
      "alpha_pattern": {},
  }
