"""Rows of JSON-lines and Parquet files, read and written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import glob
import json
import pathlib
import re
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from jaxrl_llm.data import atomic

# Rows of a Parquet file that are in memory at once.
_ROWS = 256


def find(names: str) -> list[pathlib.Path]:
  """Lists the files that `import_rollouts.files` names.

  Args:
    names: comma-separated; a name with * or ? is a pattern, whose files come
      in the order of the numbers in their names (9 before 10).

  Raises:
    FileNotFoundError: a name that no file has, or none at all.
    ValueError: a file that is named twice.
  """
  found = []
  for name in filter(None, (part.strip() for part in names.split(","))):
    pattern = re.search(r"[*?\[]", name) and not pathlib.Path(name).exists()
    paths = sorted(glob.glob(name), key=_natural) if pattern else [name]
    paths = [pathlib.Path(path) for path in paths]
    paths = [path for path in paths if path.is_file()]
    if not paths:
      raise FileNotFoundError(
          f"import_rollouts.files: there is no file {name}; correct the path."
      )
    found += paths
  if not found:
    raise FileNotFoundError(
        "import_rollouts.files: expected JSON-lines or Parquet files,"
        " comma-separated, found none."
    )
  twice = [path for path in found if found.count(path) > 1]
  if twice:
    raise ValueError(
        f"import_rollouts.files: {twice[0]} is named twice; name it once."
    )
  return found


def read(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yields ("file:line", row) of each row; blank lines are none.

  A line that is no JSON object is yielded as a ValueError that says so. The
  place of a row of Parquet is its number, from 1.
  """
  if path.suffix == ".parquet":
    yield from _read_parquet(path)
    return
  with path.open("rb") as file:
    # A line of JSON ends with a line feed alone: text may hold U+2028.
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      place = f"{path}:{number}"
      try:
        row = json.loads(line)
        problem = f"expected a JSON object, found {_kind(row)}"
      except ValueError as error:
        row, problem = None, f"not JSON ({error})"
      if isinstance(row, dict):
        yield place, row
      else:
        yield place, ValueError(
            f"{problem}; write one object per line, or delete the line."
        )


def write_jsonl(
    path: pathlib.Path, rows: Iterable[Mapping[str, Any]]
) -> None:
  """Writes a line per row; the file appears whole or not at all.

  Raises:
    ValueError: a number that JSON has not (NaN, infinity).
  """
  beside = path.with_name(path.name + ".beside")
  with beside.open("w", encoding="utf-8", newline="\n") as file:
    for row in rows:
      file.write(json.dumps(row, allow_nan=False, sort_keys=True) + "\n")
  atomic.publish(beside, path)


def write_parquet(
    path: pathlib.Path,
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[tuple[str, pa.DataType]],
) -> None:
  """Writes a Parquet file; it appears whole or not at all.

  Args:
    path: of the file.
    rows: with a value for each column.
    columns: names and types.
  """
  beside = path.with_name(path.name + ".beside")
  schema = pa.schema(columns)
  with parquet.ParquetWriter(beside, schema) as writer:
    for chunk in _chunks(rows):
      writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
  atomic.publish(beside, path)


def _chunks(
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[list[Mapping[str, Any]]]:
  """Cuts rows into lists of at most _ROWS."""
  chunk: list[Mapping[str, Any]] = []
  for row in rows:
    chunk.append(row)
    if len(chunk) == _ROWS:
      yield chunk
      chunk = []
  if chunk:
    yield chunk


def _read_parquet(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yields the rows of a Parquet file."""
  try:
    file = parquet.ParquetFile(path)
  except pa.ArrowInvalid as error:
    problem = str(error).split("\n", maxsplit=1)[0]
    raise ValueError(
        f"{path}: no Parquet file ({problem}); fetch it again, or rename it"
        " if it holds JSON lines."
    ) from error
  with file:
    number = 0
    for batch in file.iter_batches(batch_size=_ROWS):
      for row in batch.to_pylist():
        number += 1
        yield f"{path}:{number}", row


def _kind(value: Any) -> str:
  """Names the type of a JSON value."""
  return {list: "a list", str: "a text", dict: "an object"}.get(
      type(value), repr(value)
  )


def _natural(name: str) -> list[Any]:
  """Sorts the numbers in names as numbers."""
  parts = re.split(r"(\d+)", name)
  return [int(part) if part.isdecimal() else part for part in parts]
