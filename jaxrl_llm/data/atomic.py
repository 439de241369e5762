"""Files that appear whole or not at all."""

from collections.abc import Collection
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


def read_json(
    path: pathlib.Path, names: Collection[str], remedy: str
) -> dict[str, Any]:
  """Reads a JSON object.

  Args:
    path: of the file.
    names: that the object must have.
    remedy: what to do about a damaged one, as "delete it".

  Raises:
    ValueError: it is no JSON, no object, or lacks a name.
  """
  try:
    content = json.loads(path.read_bytes())
  except ValueError as error:
    raise ValueError(
        f"{path}: expected JSON, found a damaged file ({error}); {remedy}."
    ) from error
  if not isinstance(content, dict):
    raise ValueError(
        f"{path}: expected a JSON object, found a {type(content).__name__};"
        f" {remedy}."
    )
  missing = [name for name in names if name not in content]
  if missing:
    raise ValueError(
        f"{path}: expected {', '.join(names)} in it, found no"
        f" {', '.join(missing)}; {remedy}."
    )
  return content


def _sync(path: pathlib.Path) -> None:
  """Flushes a file or folder to the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
