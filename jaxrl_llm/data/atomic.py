"""Files that appear whole or not at all."""

import json
import os
import pathlib
import secrets
from typing import Any


def publish(beside: pathlib.Path, path: pathlib.Path) -> None:
  """Gives a finished file its name, durably.

  The content reaches the disk before the name does, and the name before this
  returns: a crash leaves the whole file or none under `path`.
  """
  _sync(beside)
  os.replace(beside, path)
  _sync(path.parent)


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Writes bytes; of several at once, one whole content stays."""
  beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.beside")
  beside.write_bytes(content)
  publish(beside, path)


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes UTF-8 text; of several at once, one whole text stays."""
  write_bytes(path, text.encode())


def write_json(path: pathlib.Path, content: Any) -> None:
  """Writes JSON with sorted keys, so equal content is equal bytes."""
  write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def _sync(path: pathlib.Path) -> None:
  """Flushes a file or folder to the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
