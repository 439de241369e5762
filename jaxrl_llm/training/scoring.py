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
from jaxrl_llm.models import placement
from jaxrl_llm.models import sharding as sharding_lib

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

  A host hands over only its own rows (`own_rows`); the others of its arrays
  may be empty.
  """

  def put(array):
    array = np.asarray(array)
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: array[index]
    )

  return jax.tree.map(put, tree)


def own_rows(
    count: int, shape: Shape, sharding: jax.sharding.Sharding
) -> np.ndarray:
  """Returns bool [count]: rows of micro-batches that this host's devices hold.

  Args:
    count: rows, one micro-batch after another.
    shape: of a micro-batch.
    sharding: of its rows.
  """
  places = sharding.addressable_devices_indices_map((shape.rows, shape.tokens))
  mask = np.zeros(shape.rows, bool)
  for rows, *_ in places.values():
    mask[rows] = True
  return np.resize(mask, count)


def own_members(
    rows: Sequence[Sequence[int]],
    shape: Shape,
    sharding: jax.sharding.Sharding,
) -> frozenset[int]:
  """Returns the records that this host has to read: those in its own rows.

  Where none lies in those, it is the first of all: what arrays a batch has is
  told by any record.

  Args:
    rows: numbers of records by row.
    shape: of a micro-batch.
    sharding: of its rows.
  """
  mask = own_rows(len(rows), shape, sharding)
  own = [member for row, held in zip(rows, mask) if held for member in row]
  return frozenset(own or rows[0][:1])


def places_of_whole(mesh: jax.sharding.Mesh) -> jax.sharding.Sharding | None:
  """Returns out_shardings of a function that `over_whole` calls."""
  rows = sharding_lib.rows(mesh)
  return None if rows.is_fully_addressable else rows


def over_whole(
    function: Callable[[types.Terms], PyTree],
    terms: types.Terms,
    shape: Shape,
    sharding: jax.sharding.Sharding,
    everywhere: bool = False,
) -> PyTree:
  """Computes numbers per token over all micro-batches of a mini-batch.

  On one host by one device. On several over all, the rows spread as those of a
  micro-batch are: each host brings its own alone.

  Args:
    function: terms -> arrays [M · B, T], of whichever order of the rows;
      jitted with `places_of_whole`.
    terms: numpy [M · B, T].
    shape: of a micro-batch, B rows of T.
    sharding: of its rows.
    everywhere: whether every host gets all rows.

  Returns:
    Numpy arrays [M · B, T]; 0 in rows of other hosts, unless asked for.
  """
  if sharding.is_fully_addressable:
    return jax.device_get(function(terms))

  def turn(array, first):
    # Row b of all micro-batches side by side, or one micro-batch's rows.
    parts = array.reshape(first, -1, *array.shape[1:])
    return parts.swapaxes(0, 1).reshape(array.shape)

  def fetch(array):
    if everywhere:
      return turn(placement.whole(array), shape.rows)
    found = np.zeros(array.shape, array.dtype)
    for part in array.addressable_shards:
      found[part.index] = part.data
    return turn(found, shape.rows)

  count = len(terms.mask) // shape.rows
  turned = jax.tree.map(lambda array: turn(array, count), terms)
  return jax.tree.map(fetch, function(place(turned, sharding)))


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

  A host reads the records of its own rows; what comes back is of all.

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
  chosen = index.at(positions)
  return over_rows(
      score,
      lambda member: records[int(positions[member])],
      chosen,
      packing.pack_indexed(chosen, shape.tokens),
      shape,
      sharding,
      prepared,
  )


def over_rows(
    score: Callable[[types.Batch], dict[str, jax.Array]],
    read: Callable[[int], types.Rollout],
    index: indices.Index,
    rows: Sequence[Sequence[int]],
    shape: Shape,
    sharding: jax.sharding.Sharding,
    prepared: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, list[np.ndarray]]:
  """Does what `over_records` says, on records that are packed already.

  Args:
    score: as there.
    read: record by its number.
    index: of the N records.
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
    own = own_members(chosen, shape, sharding)
    rollouts = [read(member) if member in own else None for member in members]
    local, known = _renumber(chosen), index.at(members)
    batch = packing.assemble(
        rollouts,
        local,
        tokens_per_row=shape.tokens,
        rows_per_microbatch=shape.rows,
        prepared={
            name: [values[member] for member in members]
            for name, values in (prepared or {}).items()
        },
        index=known,
    )
    scored = jax.device_get(score(place(batch, sharding)))
    for name, values in scored.items():
      into = results.setdefault(name, [None] * count)
      for member, found in zip(members, responses(values, known, local)):
        into[member] = found
  return results


def responses(
    values: np.ndarray,
    index: indices.Index,
    rows: Sequence[Sequence[int]],
) -> list[np.ndarray]:
  """Takes packed rows apart: the response's part of each record, in order."""
  found = [None] * len(index)
  for row, members in enumerate(rows):
    for segment in packing.segments(index, members):
      if segment.responds:
        size = index.response_lengths[segment.record]
        part = slice(segment.stop - size, segment.stop)
        found[segment.record] = np.asarray(values[row, part])
  return found


def lay_out(
    values: Sequence[np.ndarray],
    index: indices.Index,
    rows: Sequence[Sequence[int]],
    shape: tuple[int, int],
) -> np.ndarray:
  """Undoes `responses`: puts an [R] per record into packed rows.

  Args:
    values: one [R] per record.
    index: of the records.
    rows: as in `responses`.
    shape: of the result [B, T], 0 outside the responses.
  """
  result = np.zeros(shape, np.asarray(values[0]).dtype)
  for row, members in enumerate(rows):
    for segment in packing.segments(index, members):
      if segment.responds:
        found = values[segment.record]
        part = slice(segment.stop - len(found), segment.stop)
        result[row, part] = found
  return result


def _renumber(rows: Sequence[Sequence[int]]) -> list[list[int]]:
  """Numbers the members of some rows 0, 1, 2, … in order."""
  numbers = iter(range(sum(map(len, rows))))
  return [[next(numbers) for _ in row] for row in rows]
