"""Which rows and records are a host's own."""

import types

import numpy as np

from jaxrl_llm.training import scoring

SHAPE = scoring.Shape(4, 8)


def holding(*parts: slice):
  """A sharding, of whose rows this host's devices hold some."""
  places = {number: (rows, slice(None)) for number, rows in enumerate(parts)}
  return types.SimpleNamespace(
      addressable_devices_indices_map=lambda shape: places
  )


def test_own_rows_are_the_same_in_every_microbatch():
  found = scoring.own_rows(10, SHAPE, holding(slice(1, 2), slice(3, 4)))
  np.testing.assert_array_equal(np.flatnonzero(found), [1, 3, 5, 7, 9])
  assert scoring.own_rows(3, SHAPE, holding(slice(None))).all()


def test_a_host_reads_the_records_of_its_rows():
  rows = [[4, 0], [1], [7, 2], [3], [6], [5, 8]]
  first, second = holding(slice(2)), holding(slice(2, 4))
  assert scoring.own_members(rows, SHAPE, first) == {4, 0, 1, 6, 5, 8}
  assert scoring.own_members(rows, SHAPE, second) == {7, 2, 3}
  # It needs one record to know which arrays a batch has.
  assert scoring.own_members(rows[:2], SHAPE, second) == {4}
