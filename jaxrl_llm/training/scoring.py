"""Log-probs of whole records by forward passes over packed rows."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import packing
from jaxrl_llm.data import reading

PyTree = types.PyTree


@dataclasses.dataclass(frozen=True)
class Shape:
  """The one shape of every micro-batch of a run.

  Attributes:
    rows: of a micro-batch.
    tokens: of a row.
  """

  rows: int
  tokens: int


def place(tree: PyTree, sharding: jax.sharding.Sharding) -> PyTree:
  """Puts numpy arrays with rows on axis 0 onto the devices.

  Every host holds the whole arrays and hands over only its own rows.
  """

  def put(array):
    array = np.asarray(array)
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: array[index]
    )

  return jax.tree.map(put, tree)


def over_records(
    score: Callable[[types.Batch], dict[str, jax.Array]],
    records: reading.Records,
    index: indices.Index,
    positions: np.ndarray,
    shape: Shape,
    sharding: jax.sharding.Sharding,
    prepared: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, list[np.ndarray]]:
  """Scores records packed into micro-batches, and unpacks what comes back.

  Args:
    score: placed batch -> arrays [B, T] or [B, T, K] by name.
    records: where the positions point to.
    index: of the records.
    positions: int64 [N].
    shape: of a micro-batch.
    sharding: of its rows.
    prepared: terms of the batch beside what is recorded, an entry per record
      (see packing.assemble).

  Returns:
    By name, for each of the N records its response's [R] or [R, K], with 0
    outside the trained tokens.
  """
  rows = packing.pack(
      index.lengths[positions],
      index.response_lengths[positions],
      index.prompt_fingerprints[positions],
      shape.tokens,
  )
  return over_rows(
      score,
      lambda member: records[int(positions[member])],
      rows,
      shape,
      sharding,
      prepared,
  )


def over_rows(
    score: Callable[[types.Batch], dict[str, jax.Array]],
    read: Callable[[int], types.Rollout],
    rows: Sequence[Sequence[int]],
    shape: Shape,
    sharding: jax.sharding.Sharding,
    prepared: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, list[np.ndarray]]:
  """Does what `over_records` says, on records that are packed already.

  Args:
    score: as there.
    read: record by its number.
    rows: numbers of records by row; each of 0 to N - 1 once.
    shape: as there.
    sharding: as there.
    prepared: as there.
  """
  count = sum(map(len, rows))
  results: dict[str, list] = {}
  for start in range(0, len(rows), shape.rows):
    chosen = rows[start : start + shape.rows]
    members = [member for row in chosen for member in row]
    rollouts = [read(member) for member in members]
    local = _renumber(chosen)
    batch = packing.assemble(
        rollouts,
        local,
        tokens_per_row=shape.tokens,
        rows_per_microbatch=shape.rows,
        prepared={
            name: [values[member] for member in members]
            for name, values in (prepared or {}).items()
        },
    )
    scored = jax.device_get(score(place(batch, sharding)))
    for name, values in scored.items():
      into = results.setdefault(name, [None] * count)
      for member, found in zip(members, responses(values, rollouts, local)):
        into[member] = found
  return results


def responses(
    values: np.ndarray,
    rollouts: Sequence[types.Rollout],
    rows: Sequence[Sequence[int]],
) -> list[np.ndarray]:
  """Takes packed rows apart: the response's part of each rollout, in order."""
  found = [None] * len(rollouts)
  for row, members in enumerate(rows):
    for segment in packing.segments(rollouts, members):
      if segment.record is not None:
        size = rollouts[segment.record].response_tokens.size
        part = slice(segment.stop - size, segment.stop)
        found[segment.record] = np.asarray(values[row, part])
  return found


def lay_out(
    values: Sequence[np.ndarray],
    rollouts: Sequence[types.Rollout],
    rows: Sequence[Sequence[int]],
    shape: tuple[int, int],
) -> np.ndarray:
  """Undoes `responses`: puts an [R] per rollout into packed rows.

  Args:
    values: one [R] per rollout.
    rollouts: of the rows.
    rows: as in `responses`.
    shape: of the result [B, T], 0 outside the responses.
  """
  result = np.zeros(shape, np.asarray(values[0]).dtype)
  for row, members in enumerate(rows):
    for segment in packing.segments(rollouts, members):
      if segment.record is not None:
        found = values[segment.record]
        part = slice(segment.stop - len(found), segment.stop)
        result[row, part] = found
  return result


def _renumber(rows: Sequence[Sequence[int]]) -> list[list[int]]:
  """Numbers the members of some rows 0, 1, 2, … in order."""
  numbers = iter(range(sum(map(len, rows))))
  return [[next(numbers) for _ in row] for row in rows]
