"""The planted-noise study: its flips, its counts and its claims."""

import dataclasses

import pytest
import tiny_run

from experiments.ippo import planted_noise
from jaxrl_llm.data import shards
from jaxrl_llm.verbs import folders


def test_rewrite_changes_records_where_they_lie(tmp_path):
  rollouts = tiny_run.make_rollouts(groups=2)
  place = folders.host_folder(tmp_path, 0, 0)
  tiny_run.write(place, rollouts)
  turned = lambda one: dataclasses.replace(one, reward=1.0 - one.reward)
  former = planted_noise.rewrite(tmp_path, 0, turned)
  found = shards.open_folder(place)
  assert len(found) == len(rollouts) == len(former)
  for number, rollout in enumerate(rollouts):
    assert former[number].reward == rollout.reward
    assert found[number].reward == 1.0 - rollout.reward
    assert found[number].record_id == rollout.record_id
  assert folders.rollouts("", tmp_path) == [place]


def outcome(reward, removed=(9, 3), scored=(12, 28)):
  return planted_noise.Outcome([0.4, reward], 0.5, removed, scored, 100)


def test_precision_and_recall():
  """12 of 40 episodes are flipped; 12 are removed, 9 of them flipped."""
  one = outcome(0.9)
  assert one.precision == pytest.approx(9 / 12)
  assert one.recall == pytest.approx(9 / 12)
  assert one.removed_share == pytest.approx(12 / 40)


def claims_hold(**changes):
  found = {name: outcome(0.9) for name in planted_noise.FILTERS}
  found |= {name: outcome(0.8) for name in planted_noise.OTHERS}
  return planted_noise.summarise([found, found | changes])


def test_claims_fail(capsys):
  """A filter that is not sharp in one seed; a mean gain of (0.1 − 0.3) / 2."""
  assert claims_hold()
  assert "NO" not in capsys.readouterr().out
  sft = planted_noise.FILTERS[0]
  assert claims_hold(plain=outcome(0.9))
  assert not claims_hold(plain=outcome(1.2))
  assert not claims_hold(**{sft: outcome(0.9, removed=(8, 3))})  # recall
  assert not claims_hold(**{sft: outcome(0.9, removed=(9, 4))})  # precision
  assert capsys.readouterr().out.count("NO ") == 2 + 1 + 1
