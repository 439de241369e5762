"""The score verb: what it refuses, what it writes, and whom it scores."""

import json
import pathlib

import numpy as np
import tiny_run

from jaxrl_llm import __main__ as door
from jaxrl_llm.curation import influence
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import score as score_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.verbs import score

CONFIG = f"--config={pathlib.Path(__file__).parents[2] / 'configs/tiny.py'}"


def test_without_a_method_that_scores_it_is_refused(capsys, tmp_path):
  for name in ("none", "ps_ppo"):
    flags = [CONFIG, f"--workdir={tmp_path}", f"--config.curation.name={name}"]
    assert door.main(["score", *flags]) == door.USER_ERROR
    assert "set it to ippo" in capsys.readouterr().err


def test_files(tmp_path):
  """Best first; a score that is not finite comes last, as null."""
  values = [0.5, -2.0, float("nan"), 3.0]
  scored = [
      score_lib.Scored(rollout, value, max(value, 0.0))
      for rollout, value in zip(tiny_run.make_rollouts(groups=1), values)
  ]
  folder = score.write(tmp_path / "scores", scored)
  lines = (folder / "scores.jsonl").read_text().splitlines()
  found = [json.loads(line) for line in lines]
  assert [line["score"] for line in found] == [3.0, 0.5, -2.0, None]
  assert found[0]["record_id"] == scored[3].rollout.record_id
  text = (folder / "episodes.txt").read_text()
  places = [
      text.find(f"record {scored[n].rollout.record_id}:") for n in (3, 0, 1)
  ]
  assert places == sorted(places) and places[0] > 0


def test_scores_are_those_that_training_would_store(tmp_path):
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  folder = tiny_run.write(tmp_path / "round", rollouts)
  validation = tiny_run.make_rollouts(groups=2, seed=7)
  settings = tiny_run.SETTINGS
  state = state_lib.create(
      tiny_run.params(), optimizer.build(settings), tiny_run.LINEAGE
  )
  scored = list(
      score_lib.score(
          tiny_run.POLICY,
          state,
          tiny_run.SPEC,
          settings,
          [folder],
          curation=influence.Influence(),
          validation=validation,
          tokenizer_fingerprint="tokenizer",
          seed=5,
      )
  )
  rewards: dict[int, set[float]] = {}
  for rollout in rollouts:
    rewards.setdefault(rollout.group_id, set()).add(rollout.reward)
  assert {one.rollout.record_id for one in scored} == {
      rollout.record_id
      for rollout in rollouts
      if len(rewards[rollout.group_id]) > 1
  }
  weights = np.array([one.weight for one in scored])
  values = np.array([one.score for one in scored])
  np.testing.assert_array_equal(weights > 0, values > 0)
  assert 0 < np.sum(values > 0) < values.size
