"""What the plan must know of every record, read once."""

from collections.abc import Iterable, Sequence
import dataclasses

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import reading
from jaxrl_llm.data import shards


_DTYPES = {
    "record_ids": np.int64,
    "group_ids": np.int64,
    "prompt_ids": np.int64,
    "prompt_fingerprints": np.int64,
    "rounds": np.int32,
    "lengths": np.int32,
    "response_lengths": np.int32,
    "trained_tokens": np.int32,
    "oldest_versions": np.int32,
    "window_starts": np.int32,
    "rewards": np.float32,
    "baseline_mask": np.bool_,
    "error_mask": np.bool_,
    "unfinished_mask": np.bool_,
}
TABLE_DTYPE = np.dtype(list(_DTYPES.items()))


@dataclasses.dataclass(frozen=True)
class Index:
  """What the plan needs of every record; arrays over positions.

  Attributes:
    record_ids: int64.
    group_ids: int64.
    prompt_ids: int64.
    prompt_fingerprints: int64, of the prompt's tokens.
    rounds: int32.
    lengths: int32, prompt and response tokens.
    response_lengths: int32.
    trained_tokens: int32, response tokens that are not masked.
    oldest_versions: int32, least policy version over the trained tokens (over
      all response tokens where none is trained).
    window_starts: int32, response tokens of earlier rounds.
    rewards: float32, NaN where the verifier failed; that of an unfinished
      record is 0 and means nothing.
    baseline_mask: bool, records of role "baseline".
    error_mask: bool, records that finished with "error".
    unfinished_mask: bool, records that go on in the next round.
    lineage_names: of the folders, sorted, each once.
  """

  record_ids: np.ndarray
  group_ids: np.ndarray
  prompt_ids: np.ndarray
  prompt_fingerprints: np.ndarray
  rounds: np.ndarray
  lengths: np.ndarray
  response_lengths: np.ndarray
  trained_tokens: np.ndarray
  oldest_versions: np.ndarray
  window_starts: np.ndarray
  rewards: np.ndarray
  baseline_mask: np.ndarray
  error_mask: np.ndarray
  unfinished_mask: np.ndarray
  lineage_names: tuple[str, ...]

  @classmethod
  def of_table(
      cls, folders: Sequence[shards.Folder], table: np.ndarray
  ) -> "Index":
    """Makes the index from `read_table` of all positions.

    Raises:
      ValueError: no folder, or a record that is there twice.
    """
    if not folders:
      raise ValueError(
          "expected at least one rollout folder, found none; name one."
      )
    _, first, record = np.unique(
        table["record_ids"], return_index=True, return_inverse=True
    )
    again = np.flatnonzero(first[record] != np.arange(len(table)))
    if again.size:
      place = reading.Records(folders).place
      raise ValueError(
          f"{place(again[0])}: the same record as"
          f" {place(first[record[again[0]]])}; give each folder once."
      )
    names = sorted({folder.metadata.lineage for folder in folders})
    return cls._of_columns(table, tuple(names))

  @classmethod
  def of(cls, rollouts: Iterable[types.Rollout]) -> "Index":
    """Makes an index of records at hand, of unnamed lineage."""
    return cls._of_columns(table_of(rollouts), ())

  @classmethod
  def _of_columns(cls, table: np.ndarray, names: tuple[str, ...]) -> "Index":
    columns = {name: np.ascontiguousarray(table[name]) for name in _DTYPES}
    return cls(**columns, lineage_names=names)

  def at(self, positions: Sequence[int] | np.ndarray) -> "Index":
    """Returns the index of some of the records, in the order given."""
    chosen = {name: getattr(self, name)[positions] for name in _DTYPES}
    return dataclasses.replace(self, **chosen)

  def __len__(self) -> int:
    return len(self.record_ids)

  @property
  def scored_mask(self) -> np.ndarray:
    """bool, records whose reward is a verdict."""
    return np.isfinite(self.rewards) & ~self.unfinished_mask

  def group_sizes(self, positions: np.ndarray) -> np.ndarray:
    """Returns, for each position, how many positions share its group."""
    _, group, sizes = np.unique(
        self.group_ids[positions], return_inverse=True, return_counts=True
    )
    return sizes[group]


def read_table(
    folders: Sequence[shards.Folder], positions: Sequence[int]
) -> np.ndarray:
  """Reads some records: one entry each, with a field per array of the index.

  The fields' names and dtypes are `TABLE_DTYPE`.
  """
  records = reading.Records(folders)
  return table_of(records[position] for position in positions)


def table_of(rollouts: Iterable[types.Rollout]) -> np.ndarray:
  """Returns what `read_table` says, of records at hand."""
  rows = [tuple(_row(rollout).values()) for rollout in rollouts]
  return np.array(rows, TABLE_DTYPE)


def _row(rollout: types.Rollout) -> dict[str, float]:
  """Returns a record's entry of every array of the index."""
  trained = trained_mask(rollout)
  versions = rollout.policy_versions
  oldest = versions[trained].min() if trained.any() else versions.min()
  response_length = rollout.response_tokens.size
  return {
      "record_ids": rollout.record_id,
      "group_ids": rollout.group_id,
      "prompt_ids": rollout.prompt_id,
      "prompt_fingerprints": fingerprints.of_tokens(rollout.prompt_tokens),
      "rounds": rollout.round,
      "lengths": rollout.prompt_tokens.size + response_length,
      "response_lengths": response_length,
      "trained_tokens": trained.sum(),
      "oldest_versions": oldest,
      "window_starts": rollout.window_start,
      "rewards": rollout.reward,
      "baseline_mask": rollout.role == "baseline",
      "error_mask": rollout.finish_reason == "error",
      "unfinished_mask": rollout.unfinished,
  }


def trained_mask(rollout: types.Rollout) -> np.ndarray:
  """Returns bool [R]: sampled by the policy, and new since window_start."""
  positions = np.arange(rollout.response_tokens.size)
  return rollout.response_mask & (positions >= rollout.window_start)
