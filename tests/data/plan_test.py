"""The plan: what is dropped and why, and which record comes when."""

import dataclasses
import json
import pathlib
import random

import numpy as np
import pytest

from jaxrl_llm.data import index as indices
from jaxrl_llm.data import plan
from jaxrl_llm.data import shards


def _index(write_folder, *folders):
  opened = []
  for number, rollouts in enumerate(folders):
    path = write_folder(f"host_{number:03d}", rollouts, 1)
    opened.append(shards.open_folder(path))
  return _index_of(opened)


def _index_of(opened):
  positions = range(sum(map(len, opened)))
  return indices.Index.of_table(opened, indices.read_table(opened, positions))


def _select(index, tokens_per_row=64, **arguments):
  return plan.select(index, tokens_per_row=tokens_per_row, **arguments)


def test_index_reads_what_the_plan_needs(write_folder, rollout):
  """Staleness counts from the oldest trained token."""
  versions = np.array([5, 2, 4, 9], np.int32)
  masked = np.array([True, True, False, True])
  index = _index(
      write_folder,
      [
          rollout(1, policy_versions=versions),
          rollout(6, policy_versions=versions, response_mask=~masked),
          rollout(11, policy_versions=versions, window_start=3, reward=np.nan),
      ],
  )
  assert index.oldest_versions.tolist() == [2, 4, 9]
  assert index.trained_tokens.tolist() == [4, 1, 1]
  assert index.lengths.tolist() == [8, 8, 8]
  assert index.response_lengths.tolist() == [4, 4, 4]
  assert np.isnan(index.rewards[2]) and index.rewards.dtype == np.float32
  assert index.record_ids.dtype == np.int64 and len(index) == 3


def test_every_reason_is_counted_once(write_folder, rollout):
  """Dropped counts by reason; the first reason that applies counts."""
  none = np.zeros(7, np.bool_)
  index = _index(
      write_folder,
      [
          rollout(0),
          rollout(1),
          rollout(2, role="baseline", reward=float("nan")),
          rollout(3, finish_reason="error"),
          rollout(4, response_mask=none),
          rollout(5, policy_versions=np.zeros(3, np.int32)),
          rollout(6, reward=float("nan")),
          rollout(8, prompt_tokens=np.arange(60, dtype=np.int32)),
          rollout(9),
          rollout(12, reward=0.5),
          rollout(13, reward=0.5),
          rollout(14, reward=float("nan")),
      ],
  )
  selection = _select(
      index, max_staleness=2, policy_version=4, lineage="lineage"
  )
  assert selection.drops == {
      "baseline": 1,
      "error": 1,
      "nan_reward": 2,
      "masked": 1,
      "stale": 1,
      "long": 1,
      "uniform": 2,
  }
  assert selection.positions.tolist() == [0, 1, 8]
  # A long record still is a member of its group's statistics; groups
  # without a record to train on are gone.
  assert selection.members.tolist() == [0, 1, 7, 8]
  # Records 8 and 9 are ignored, and 2, which has gone before.
  ignored_mask = np.isin(np.arange(len(index)), [2, 8, 9])
  chosen = _select(index, keep_uniform_groups=True, ignored_mask=ignored_mask)
  assert chosen.drops["ignored"] == 2 and chosen.drops["baseline"] == 1
  assert chosen.positions.tolist() == [0, 1, 5, 10]
  nothing = _select(index, ignored_mask=np.ones(len(index), bool))
  assert not nothing.positions.size and not nothing.members.size
  kept = _select(index, keep_uniform_groups=True)
  assert kept.drops["uniform"] == 0 and {9, 10} <= set(kept.positions)


def test_staleness_is_inclusive_and_within_one_lineage(write_folder, rollout):
  index = _index(write_folder, [rollout(0), rollout(1)])  # Version 3.
  for limit, kept in ((2, 2), (1, 0)):
    arguments = dict(
        max_staleness=limit, policy_version=5, lineage="lineage"
    )
    if kept:
      assert len(_select(index, **arguments).positions) == kept
      continue
    with pytest.raises(ValueError, match="all 2 were dropped .*stale 2"):
      _select(index, **arguments)
  with pytest.raises(ValueError, match="lineage 'mine', the rollouts of"):
    _select(index, max_staleness=9, policy_version=5, lineage="mine")
  with pytest.raises(ValueError, match="needs the trained policy's version"):
    _select(index, max_staleness=9)
  assert len(_select(index).positions) == 2


def test_a_group_of_one_is_left_to_the_objective(write_folder, rollout):
  index = _index(write_folder, [rollout(0), rollout(4), rollout(5)])
  selection = _select(index)
  assert selection.positions.tolist() == [0, 1, 2]
  assert index.group_sizes(selection.positions).tolist() == [1, 2, 2]


def test_groups_are_told_apart_by_id(write_folder, rollout):
  """Two groups with the same prompt stay two; folders share groups."""
  one = [rollout(0), rollout(1)]
  other = [rollout(2), rollout(3)]
  again = [
      dataclasses.replace(record, record_id=record.record_id + 1, group_id=7)
      for record in (*one, *other)
  ]
  index = _index(write_folder, one, other + again)
  assert index.group_sizes(np.arange(8)).tolist() == [4] * 8
  batches = plan.rollout_batches(
      index, _select(index), seed=0, groups_per_batch=1
  )
  assert sorted(batch.positions.tolist() for batch in batches) == [
      [0, 1, 2, 3],
      [4, 5, 6, 7],
  ]


def test_a_record_given_twice_is_refused(write_folder, rollout):
  with pytest.raises(ValueError, match="host_001, record 0: the same record"):
    _index(write_folder, [rollout(0), rollout(1)], [rollout(1)])
  with pytest.raises(ValueError, match="at least one rollout folder"):
    _index_of([])


@pytest.fixture(name="large")
def _large(write_folder, rollout):
  return _index(write_folder, [rollout(number) for number in range(52)])


def _groups(index, positions):
  return index.group_ids[positions].tolist()


def test_an_epoch_is_the_exact_multiset_in_whole_groups(large):
  """Nothing skipped, nothing twice; 13 groups as 5, 5 and 3."""
  (batch,) = plan.rollout_batches(large, _select(large), seed=3)
  cut = plan.minibatches(
      large, batch, seed=3, epoch=0, groups_per_minibatch=5
  )
  assert sorted(np.concatenate(cut)) == list(range(52))
  assert [len(set(_groups(large, part))) for part in cut] == [5, 4, 4]
  groups = [set(_groups(large, part)) for part in cut]
  assert not groups[0] & groups[1] and not groups[1] & groups[2]


def test_order_comes_from_seed_batch_and_epoch(large):
  """The same inputs give the same order, other ones another."""

  def order(seed=0, number=0, epoch=0):
    (batch,) = plan.rollout_batches(
        large, _select(large), seed=seed, first_number=number
    )
    cut = plan.minibatches(
        large, batch, seed=seed, epoch=epoch, groups_per_minibatch=4
    )
    return tuple(np.concatenate(cut).tolist())

  assert order() == order()
  orders = {order(), order(seed=1), order(number=1), order(epoch=1)}
  assert len(orders) == 4
  with pytest.raises(ValueError, match="train.groups_per_minibatch"):
    order_of_none = plan.rollout_batches(large, _select(large), seed=0)[0]
    plan.minibatches(
        large, order_of_none, seed=0, epoch=0, groups_per_minibatch=0
    )


def test_the_order_of_groups_does_not_depend_on_where_they_lie(
    write_folder, rollout
):
  """The same on every host, and when a shard is laid out differently."""
  numbers = list(range(40))
  straight = _index(write_folder, [rollout(number) for number in numbers])
  random.Random(0).shuffle(numbers)
  shuffled = _index_of([
      shards.open_folder(
          write_folder("shuffled", [rollout(number) for number in numbers])
      )
  ])
  orders = []
  for index in (straight, shuffled):
    (batch,) = plan.rollout_batches(index, _select(index), seed=0)
    cut = plan.minibatches(
        index, batch, seed=0, epoch=2, groups_per_minibatch=3
    )
    orders.append([list(dict.fromkeys(_groups(index, part))) for part in cut])
  assert orders[0] == orders[1]


def test_a_frozen_folder_is_cut_into_batches_of_groups(large):
  batches = plan.rollout_batches(
      large, _select(large), seed=0, groups_per_batch=6, first_number=2
  )
  assert [batch.number for batch in batches] == [2, 3, 4]
  sizes = [len(set(_groups(large, batch.positions))) for batch in batches]
  assert sizes == [6, 6, 1]
  together = np.concatenate([batch.positions for batch in batches])
  assert sorted(together) == list(range(52))
  other = plan.rollout_batches(
      large, _select(large), seed=1, groups_per_batch=6
  )
  assert batches[0].positions.tolist() != other[0].positions.tolist()


class TestGroupLimit:
  """Some of each kind are trained on, all enter the statistics."""

  def select(self, write_folder, rollout, rewards, limit):
    made = [
        rollout(0, record_id=k, group_id=1, sample_index=k, reward=float(r))
        for k, r in enumerate(rewards)
    ]
    index = _index(write_folder, made)
    return index, _select(index, group_limit=limit)

  def test_golden_reinforce_ada(self, write_folder, rollout):
    path = pathlib.Path(__file__).parents[1] / "golden/data.json"
    wanted = json.loads(path.read_text())["golden"]["reinforce_ada"]
    rewards = [0] * wanted["total_neg"]
    for place in (5, 9, 20)[: wanted["total_pos"]]:
      rewards.insert(place, 1)
    index, found = self.select(write_folder, rollout, rewards, wanted["n"])
    kept = sorted(index.rewards[found.positions], reverse=True)
    assert kept == wanted["kept_rewards"]
    mean = index.rewards[found.members].mean()
    assert mean == wanted["global_mean"]
    assert (np.array(kept) - mean).tolist() == wanted["advantages"]
    # The first of each kind.
    assert found.positions.tolist() == [0, 1, 5, 9]
    assert found.drops["limit"] == 20

  @pytest.mark.parametrize(
      "rewards, positions",
      [
          ([0, 0, 1, 0, 0], [0, 1, 2, 3]),
          ([1, 1, 0, 1, 1], [0, 1, 2, 3]),
          ([1, 0, 1], [0, 1, 2]),
          ([0.2, 0.9, 0.3, 0.8, 0.7], [0, 1, 2, 3]),
      ],
  )
  def test_the_other_kind_fills_up(
      self, write_folder, rollout, rewards, positions
  ):
    _, found = self.select(write_folder, rollout, rewards, 4)
    assert found.positions.tolist() == positions
    assert found.members.tolist() == list(range(len(rewards)))
