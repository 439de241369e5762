"""Opens a round's folders, each process its part of the files and records."""

from collections.abc import Sequence
import pathlib

import jax
import numpy as np

from jaxrl_llm import hosts
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import manifest as manifests
from jaxrl_llm.data import shards


def open_folders(
    folders: Sequence[pathlib.Path | str], tokenizer_fingerprint: str | None
) -> tuple[list[shards.Folder], indices.Index]:
  """Checks and indexes folders; all processes call, and get the same.

  Each file is read for its checksum by one process, and so is each record for
  the index. A process that finds damage stops all with its words.

  Args:
    folders: finished.
    tokenizer_fingerprint: of the model; None accepts any.

  Raises:
    ValueError: there are none, they are damaged, or do not fit the model or
      each other.
    FileNotFoundError: with one process, a folder or its manifest is missing.
  """
  opened = hosts.together(lambda: _open_part(folders, tokenizer_fingerprint))
  own = hosts.share(sum(map(len, opened)))
  table = hosts.together(lambda: indices.read_table(opened, own))
  parts = hosts.exchange_bytes(table.tobytes())
  whole = np.frombuffer(b"".join(parts), indices.TABLE_DTYPE)
  return opened, indices.Index.of_table(opened, whole)


def _open_part(folders, tokenizer_fingerprint) -> list[shards.Folder]:
  """Opens all folders, and reads this process's part of their files."""
  found = [manifests.read(pathlib.Path(path)) for path in folders]
  parts = manifests.split(found, jax.process_count())
  return [
      shards.open_folder(
          path,
          tokenizer_fingerprint=tokenizer_fingerprint,
          checksummed=names,
      )
      for path, names in zip(folders, parts[jax.process_index()])
  ]
