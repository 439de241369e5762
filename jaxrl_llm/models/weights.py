"""Weights from and to disk, whatever the format."""

import os
import pathlib
from typing import Any

from jaxrl_llm.models import config as model_config
from jaxrl_llm.models import gguf_import
from jaxrl_llm.models import hf_import


def read(
    path: str | os.PathLike[str],
) -> tuple[model_config.ModelConfig, dict[str, Any]]:
  """Reads a Hugging Face folder (an export of this package too) or a GGUF file.

  Returns:
    The configuration and float32 numpy parameters, layers stacked on axis 0.

  Raises:
    FileNotFoundError, ValueError: in one line, with the remedy.
  """
  source = pathlib.Path(path).expanduser()
  if source.is_dir():
    return hf_import.load(source)
  if source.suffix == ".gguf":
    return gguf_import.load(source)
  if not source.exists():
    raise FileNotFoundError(
        f"{source}: expected a Hugging Face folder or a .gguf file, found "
        "nothing; correct model.path."
    )
  raise ValueError(
      f"{source}: expected a Hugging Face folder or a .gguf file, found "
      "another kind of file; correct model.path."
  )
