"""Reads records by position, ahead of the training step."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import grain
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import shards


Read = TypeVar("Read")

# Order and content do not depend on it.
_THREADS = 2


class Records:
  """The records of several folders, one after another."""

  def __init__(self, folders: Sequence[shards.Folder]):
    """Positions count through the folders in this order."""
    self._folders = tuple(folders)
    self._ends = np.cumsum([len(folder) for folder in folders])

  def __len__(self) -> int:
    return int(self._ends[-1])

  def __getitem__(self, position: int) -> types.Rollout:
    """Reads one record; errors as `shards.Folder`."""
    folder, number = self._locate(position)
    return folder[number]

  def at(self, positions: Sequence[int] | np.ndarray) -> list[types.Rollout]:
    """Reads some records, in the order given."""
    return [self[int(position)] for position in positions]

  def place(self, position: int) -> str:
    """Says where a record lies."""
    folder, number = self._locate(position)
    return f"{folder.path}, record {number}"

  def _locate(self, position: int) -> tuple[shards.Folder, int]:
    if not 0 <= position < len(self):
      raise IndexError(f"no record {position} of {len(self)}")
    number = int(np.searchsorted(self._ends, position, side="right"))
    folder = self._folders[number]
    return folder, int(position - self._ends[number] + len(folder))


def read_ahead(
    read: Callable[[np.ndarray], Read],
    minibatches: Sequence[np.ndarray],
    first: int = 0,
) -> Iterator[Read]:
  """Yields what is read of each mini-batch, in background threads.

  Args:
    read: positions of a mini-batch -> its records, as `Records.at`.
    minibatches: positions of each mini-batch (`plan.minibatches`).
    first: mini-batch to start at; the whole state of the reader.
  """
  if first >= len(minibatches):
    return
  dataset = grain.MapDataset.source(list(minibatches)[first:]).map(read)
  options = grain.ReadOptions(
      num_threads=_THREADS, prefetch_buffer_size=2 * _THREADS
  )
  yield from dataset.to_iter_dataset(options)
