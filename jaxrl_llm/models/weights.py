"""Weights on disk, whatever the format."""

import os
import pathlib

from jaxrl_llm.models import config as model_config
from jaxrl_llm.models import gguf_import
from jaxrl_llm.models import hf_import
from jaxrl_llm.models import weight_source


def read(
    path: str | os.PathLike[str],
) -> tuple[model_config.ModelConfig, dict[str, object]]:
  """Reads the whole of a model onto this host.

  Returns:
    The configuration and float32 numpy parameters, layers stacked on axis 0.

  Raises:
    FileNotFoundError, ValueError: in one line, with the remedy.
  """
  source = open_model(path)
  return source.config, source.tree()


def open_model(path: str | os.PathLike[str]) -> weight_source.Source:
  """Opens a Hugging Face folder (an export too) or a GGUF file.

  Raises:
    FileNotFoundError, ValueError: in one line, with the remedy.
  """
  source = pathlib.Path(path).expanduser()
  if source.is_dir():
    return hf_import.open_folder(source)
  if source.suffix == ".gguf":
    return gguf_import.open_file(source)
  if not source.exists():
    raise FileNotFoundError(
        f"{source}: expected a Hugging Face folder or a .gguf file, found "
        "nothing; correct model.path."
    )
  raise ValueError(
      f"{source}: expected a Hugging Face folder or a .gguf file, found "
      "another kind of file; correct model.path."
  )
