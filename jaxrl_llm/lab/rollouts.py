"""Lengths and ends of the responses of each round, read once per folder."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from jaxrl_llm.data import atomic
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import manifest
from jaxrl_llm.data import shards

QUANTILES = (5, 25, 50, 75, 95)


@dataclasses.dataclass(frozen=True)
class Responses:
  """Counts over the sampled responses of a round, baselines left out.

  Attributes:
    lengths: responses by their number of tokens.
    reasons: responses by finish reason.
  """

  lengths: Mapping[int, int]
  reasons: Mapping[str, int]

  @property
  def count(self) -> int:
    """Responses of the round."""
    return sum(self.reasons.values())

  @property
  def mean(self) -> float:
    """Mean length in tokens."""
    return sum(size * n for size, n in self.lengths.items()) / self.count

  @property
  def quantiles(self) -> np.ndarray:
    """float [5], lengths in tokens at QUANTILES percent."""
    sizes = sorted(self.lengths)
    return np.percentile(
        np.repeat(sizes, [self.lengths[size] for size in sizes]), QUANTILES
    )


def folders(workdir: pathlib.Path, named: str = "") -> list[pathlib.Path]:
  """Lists the shard folders of a run, finished or not, by name.

  Args:
    workdir: of the run; its rollouts/ is searched.
    named: train.rollouts of the run, comma-separated: searched too.
  """
  places = [pathlib.Path(name) for name in named.split(",") if name]
  found = []
  for place in (workdir / "rollouts", *places):
    names = place.rglob(manifest.METADATA_NAME)
    found += sorted(path.parent for path in names)
  return list({path.resolve(): path for path in found}.values())


def by_round(
    chosen: Sequence[pathlib.Path], cache: pathlib.Path
) -> tuple[dict[int, Responses], list[str]]:
  """Counts the responses of each round.

  A folder that was counted before is not opened: what was found lies in the
  cache with the checksum of its manifest.

  Args:
    chosen: shard folders.
    cache: JSON file, written anew; need not exist.

  Returns:
    By round, and a line about each folder that could not be counted.
  """
  known, entries, notes = _read(cache), {}, []
  for folder in chosen:
    if not (folder / manifest.NAME).is_file():
      notes.append(f"{folder}: not finished, its responses are not counted.")
      continue
    name = os.path.relpath(folder, cache.parent)
    mark = fingerprints.of_file(folder / manifest.NAME)
    entry = known.get(name)
    if entry is None or entry["manifest"] != mark:
      try:
        entry = {"manifest": mark, **_count(folder)}
      except (OSError, ValueError) as error:
        notes.append(f"{error} Its responses are not counted.")
        continue
    entries[name] = entry
  if entries != known:
    cache.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(cache, entries)
  return _merge(entries.values()), notes


def _count(folder: pathlib.Path) -> dict[str, Any]:
  """Reads a finished folder; JSON values."""
  opened = shards.open_folder(folder)
  lengths: collections.Counter[str] = collections.Counter()
  reasons: collections.Counter[str] = collections.Counter()
  for position in range(len(opened)):
    rollout = opened[position]
    if rollout.role == "train":
      lengths[str(rollout.response_tokens.size)] += 1
      reasons[rollout.finish_reason] += 1
  return {
      "round": opened.metadata.round,
      "lengths": dict(lengths),
      "reasons": dict(reasons),
  }


def _merge(entries) -> dict[int, Responses]:
  """Adds up the folders of each round; one of baselines alone has no place."""
  sums: dict[int, tuple[collections.Counter, collections.Counter]] = {}
  for entry in entries:
    lengths, reasons = sums.setdefault(
        entry["round"], (collections.Counter(), collections.Counter())
    )
    lengths.update({int(k): n for k, n in entry["lengths"].items()})
    reasons.update(entry["reasons"])
  return {
      number: Responses(dict(lengths), dict(reasons))
      for number, (lengths, reasons) in sorted(sums.items())
      if reasons
  }


def _read(cache: pathlib.Path) -> dict[str, Any]:
  """Reads the cache; one that is damaged is as good as none."""
  try:
    return atomic.read_json(cache, (), "delete it")
  except (OSError, ValueError):
    return {}
