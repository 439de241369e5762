"""Reading by position: through folders, ahead, from any place on."""

import numpy as np
import pytest

from jaxrl_llm.data import reading
from jaxrl_llm.data import shards


@pytest.fixture(name="records")
def _records(write_folder, rollout):
  folders = [range(5), range(5, 7), range(7, 12)]
  return reading.Records([
      shards.open_folder(
          write_folder(f"host_{number}", [rollout(index) for index in numbers])
      )
      for number, numbers in enumerate(folders)
  ])


def test_positions_count_through_the_folders(records, rollout):
  assert len(records) == 12
  for position in (0, 4, 5, 6, 7, 11):
    assert records[position].record_id == rollout(position).record_id
  for position in (-1, 12):
    with pytest.raises(IndexError):
      records[position]


@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_reading_resumes_at_a_minibatch(records, first):
  """The first mini-batch after a resume is the next one."""
  cut = [np.array(part) for part in ([3, 11, 0], [5], [6, 1], [2, 4])]
  found = list(reading.read_ahead(records.at, cut, first))
  ids = [[rollout.record_id for rollout in part] for part in found]
  assert ids == [
      [records[position].record_id for position in part]
      for part in cut[first:]
  ]
