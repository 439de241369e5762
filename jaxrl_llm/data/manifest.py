"""The list of a finished folder's files: written last, read first.

A folder without a manifest is not finished. A folder whose files differ from
its manifest is damaged.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import json
import os
import pathlib
from typing import Any

from jaxrl_llm.data import atomic
from jaxrl_llm.data import fingerprints

NAME = "manifest.json"
METADATA_NAME = "metadata.json"


@dataclasses.dataclass(frozen=True)
class Entry:
  """One file: its size in bytes, its SHA-256, its records (0 if no shard)."""

  bytes: int
  sha256: str
  records: int = 0


@dataclasses.dataclass(frozen=True)
class Manifest:
  """All files of a folder, by name.

  `shards` names the record files in order of position.
  """

  files: Mapping[str, Entry]
  shards: tuple[str, ...]

  @property
  def records(self) -> int:
    """Records of the folder."""
    return sum(entry.records for entry in self.files.values())

  def locate(self, position: int) -> tuple[str, int]:
    """Returns the shard that holds a record and its place therein."""
    for name in self.shards:
      if position < self.files[name].records:
        return name, position
      position -= self.files[name].records
    raise IndexError(position)


def entry(path: pathlib.Path, records: int = 0) -> Entry:
  """Describes a file as it lies on disk."""
  return Entry(path.stat().st_size, fingerprints.of_file(path), records)


def write(folder: pathlib.Path, manifest: Manifest) -> None:
  """Writes the manifest; from here on the folder is finished."""
  files = {
      name: dataclasses.asdict(found) for name, found in manifest.files.items()
  }
  content = {"files": files, "shards": list(manifest.shards)}
  atomic.write_json(folder / NAME, content)


def read(folder: pathlib.Path) -> Manifest:
  """Reads the manifest of a finished folder.

  Raises:
    FileNotFoundError: the folder does not exist or is not finished.
    ValueError: the manifest is damaged.
  """
  path = folder / NAME
  if not folder.is_dir():
    raise FileNotFoundError(
        f"{folder}: no such folder; give the folder of a generated round."
    )
  if not path.is_file():
    raise FileNotFoundError(
        f"{folder}: no {NAME}, so it is not finished; run the same `generate`"
        " or `import-rollouts` again to resume it."
    )
  content = read_json(path)
  try:
    files = {name: Entry(**found) for name, found in content["files"].items()}
    found = Manifest(files, tuple(content["shards"]))
    fewest = min((files[name].records for name in found.shards), default=0)
    problem = None if fewest >= 1 else "a shard without records, or no shard"
  except (KeyError, TypeError, AttributeError) as error:
    problem = error
  if problem:
    raise ValueError(
        f"{path}: not a manifest ({problem}); delete it and run the same"
        " `generate` or `import-rollouts` again to write it anew."
    )
  return found


def check_count(folder: pathlib.Path, manifest: Manifest, found: int) -> None:
  """Compares the records that the manifest names with those described.

  Raises:
    ValueError: they are others; the rest would be left out in silence.
  """
  if manifest.records != found:
    raise ValueError(
        f"{folder / NAME}: {manifest.records} records, dataset_info.json says"
        f" {found}; delete it and run the same `generate` or `import-rollouts`"
        " again to write it anew."
    )


def read_json(path: pathlib.Path) -> Any:
  """Reads a JSON file of a folder.

  Raises:
    ValueError: not JSON, or not text, or no object.
  """
  try:
    content, problem = json.loads(path.read_bytes()), "no JSON object"
  except ValueError as error:
    content, problem = None, f"not JSON ({error})"
  if not isinstance(content, dict):
    raise ValueError(
        f"{path}: {problem}; delete the folder and generate it again."
    )
  return content


def differences(
    found: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = ""
) -> list[str]:
  """Says "key was A, now B" of each value that differs, groups entered."""
  lines = []
  for key in sorted(found.keys() | expected.keys()):
    was, now = found.get(key), expected.get(key)
    if isinstance(was, Mapping) and isinstance(now, Mapping):
      lines += differences(was, now, f"{prefix}{key}.")
    elif was != now:
      lines.append(f"{prefix}{key} was {was!r}, now {now!r}")
  return lines


def split(
    manifests: Sequence[Manifest], parts: int
) -> list[list[frozenset[str]]]:
  """Shares the files of folders out, about as many bytes to each part.

  Returns:
    For each part, the names of its files by folder; neighbours stay together.
  """
  names = [[set() for _ in manifests] for _ in range(parts)]
  total = sum(x.bytes for m in manifests for x in m.files.values())
  start = 0
  for number, manifest in enumerate(manifests):
    for name, found in manifest.files.items():
      middle = start + found.bytes // 2
      names[min(middle * parts // total, parts - 1)][number].add(name)
      start += found.bytes
  return [[frozenset(found) for found in part] for part in names]


def damage(
    folder: pathlib.Path,
    manifest: Manifest,
    checksummed: Collection[str] | None = None,
) -> list[tuple[str, str]]:
  """Compares the files with the manifest: sizes, then checksums.

  Args:
    folder: a finished folder.
    manifest: of that folder.
    checksummed: names of the files that are read for their checksum; None
      reads all.

  Returns:
    (file name, what is wrong with it and what to do) of each damaged file.
  """
  remedy = (
      f"delete it and {NAME}, then run the same `generate` or `import-rollouts`"
      " again."
  )
  found = []
  for name, expected in manifest.files.items():
    path = folder / name
    if not path.is_file():
      found.append((name, f"missing; restore it, or {remedy}"))
    elif path.stat().st_size != expected.bytes:
      found.append((
          name,
          f"{path.stat().st_size} bytes, the manifest says {expected.bytes}"
          f" (truncated or overwritten); {remedy}",
      ))
    elif (
        checksummed is None or name in checksummed
    ) and fingerprints.of_file(path) != expected.sha256:
      found.append((name, f"its checksum is not the manifest's; {remedy}"))
  return found


def missing_folders(
    folders: Sequence[str | os.PathLike[str]],
) -> list[pathlib.Path]:
  """Returns the planned folders that have no manifest yet.

  A round is complete when every planned folder has its manifest.
  """
  paths = map(pathlib.Path, folders)
  return [path for path in paths if not (path / NAME).is_file()]
