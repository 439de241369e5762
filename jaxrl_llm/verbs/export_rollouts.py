"""Writes the records of shard folders as JSON lines or Parquet.

Takes the folders that --config.train.rollouts names, else all under --workdir,
and checks them while reading. `import-rollouts` reads the file back to equal
records. A file that is there is never written over.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import pathlib
from typing import Any

import ml_collections

from jaxrl_llm.data import dump_files
from jaxrl_llm.data import exchange
from jaxrl_llm.data import shards
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import settings

SECTIONS = ("train.rollouts", "export_rollouts")
FORMATS = ("jsonl", "parquet")


@dataclasses.dataclass(frozen=True)
class ExportSettings:
  """What is written (config.export_rollouts); see configs/base.py."""

  format: str = "jsonl"
  file: str = ""

  def __post_init__(self):
    if self.format not in FORMATS:
      raise ValueError(
          "export_rollouts.format: expected one of"
          f" {', '.join(FORMATS)}, found {self.format!r}."
      )


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Writes the file and prints its path."""
  chosen = settings.build(ExportSettings, "export_rollouts", config)
  path = _target(chosen, workdir)
  opened = [
      shards.open_folder(folder)
      for folder in folders.rollouts(config.train.rollouts, workdir)
  ]
  path.parent.mkdir(parents=True, exist_ok=True)
  if chosen.format == "parquet":
    dump_files.write_parquet(path, _rows(opened), _columns(opened))
  else:
    dump_files.write_jsonl(path, _rows(opened))
  count = sum(map(len, opened))
  print(f"{count} records of {len(opened)} folders exported to {path}")


def _target(
    chosen: ExportSettings, workdir: pathlib.Path | None
) -> pathlib.Path:
  """Returns the file to write.

  Raises:
    ValueError: nothing says where, or it is there already.
  """
  if not chosen.file and workdir is None:
    raise ValueError(
        "export-rollouts writes a file; say where with --workdir=DIR or"
        " --config.export_rollouts.file=FILE."
    )
  path = pathlib.Path(chosen.file or "")
  if not chosen.file:
    path = workdir / "exported" / f"rollouts.{chosen.format}"
  if path.exists():
    raise ValueError(
        f"export_rollouts.file: {path} is there already; delete it, or choose"
        " another file."
    )
  return path


def _rows(opened: Sequence[shards.Folder]) -> Iterator[dict[str, Any]]:
  """Yields the records of all folders as rows, in order."""
  for folder in opened:
    for position in range(len(folder)):
      yield exchange.row(folder[position], folder.metadata)


def _columns(opened: Sequence[shards.Folder]) -> list[tuple[str, Any]]:
  """Returns the columns that all folders share.

  Raises:
    ValueError: two folders have other columns.
  """
  first = exchange.columns(opened[0].metadata)
  for folder in opened[1:]:
    odd = set(first) ^ set(exchange.columns(folder.metadata))
    if odd:
      raise ValueError(
          f"{folder.path}: expected the fields of {opened[0].path}, found"
          f" others ({sorted(name for name, _ in odd)[0]}); export them apart,"
          " or as jsonl."
      )
  return first
