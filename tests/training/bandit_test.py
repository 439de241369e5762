"""The clip bound as a bandit's arm: golden choices, and in training."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tiny_run

from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import bandit
from jaxrl_llm.training import metrics

GOLDEN = json.loads(
    (pathlib.Path(__file__).parents[1] / "golden/is.json").read_text()
)["cases"]["pb_ppo_bandit"]
PPO = algorithms.build({"name": "ppo", "correction": "none"})
SETTINGS = dataclasses.replace(
    tiny_run.SETTINGS, clip_bandit="ucb1", clip_arms=(0.05, 0.3)
)


def play(rule, returns):
  """Lets a bandit choose as often as there are returns."""
  player = bandit.Bandit(
      rule, len(GOLDEN["arms"]), GOLDEN["C"], GOLDEN["discount"]
  )
  history = []
  for result in returns:
    history.append((player.choose(history), result))
  return [arm for arm, _ in history], *player.values(history)


@pytest.mark.parametrize("rule, case, sums", [
    ("pb_ppo", "official_code_rule", "Q"),
    ("pb_ppo", "official_code_rule_negative_returns", "Q"),
    ("ucb1", "ucb1_textbook_variant", "Q_sum"),
])
def test_choices_of_the_golden(rule, case, sums):
  wanted = GOLDEN[case]
  returns = wanted.get("returns_fed_in_order", GOLDEN["returns_fed_in_order"])
  arms, found, visits = play(rule, returns)
  assert arms == wanted["arm_index"]
  np.testing.assert_allclose(found, wanted[sums], rtol=1e-12)
  np.testing.assert_array_equal(visits, wanted["visits"])


def test_ucb1_settles_on_the_best_arm():
  """Arm 3 returns 0.9, the others 0.1."""
  player = bandit.Bandit("ucb1", 6, 0.5)
  history = []
  for _ in range(200):
    arm = player.choose(history)
    history.append((arm, 0.9 if arm == 3 else 0.1))
  _, visits = player.values(history)
  assert visits[3] > 150 and visits.min() >= 1


def test_each_round_trains_within_its_bound(tmp_path):
  """Each arm once, then the one whose next round had the higher reward."""
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  rewards = [0.5, 0.25, 0.75]
  bounds = []
  for number, reward in enumerate(rewards):
    drawn = [
        dataclasses.replace(
            rollout,
            round=number,
            record_id=rollout.record_id ^ number,
            reward=reward + 0.25 * (-1) ** rollout.sample_index,
        )
        for rollout in rollouts
    ]
    folder = tiny_run.write(tmp_path / f"r{number}", drawn, round=number)
    tiny_run.train(
        folder, tmp_path / "run", spec=PPO, settings=SETTINGS, round=number
    )
    path = tmp_path / f"run/controls/round_{number:05d}.json"
    bounds.append(json.loads(path.read_text())["bound"])
  # Arm 0.05 was followed by a reward of 0.25, arm 0.3 by one of 0.75.
  assert bounds == [0.05, 0.3, 0.3]
  records = metrics.read(tmp_path / "run/metrics.jsonl")
  logged = {r["round"]: r["clip_high"] for r in records if r["kind"] == "batch"}
  assert list(logged.values()) == pytest.approx(bounds)


def test_the_bound_changes_the_update_and_a_resume_keeps_it(tmp_path):
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  folder = tiny_run.write(tmp_path / "rollouts", rollouts)
  train = lambda name, settings: tiny_run.digest(tiny_run.train(
      folder, tmp_path / name, spec=PPO, settings=settings
  ))
  narrow = train("narrow", SETTINGS)
  fixed = algorithms.build({
      "name": "ppo", "correction": "none", "clip_low": 0.05, "clip_high": 0.05,
  })
  plain = tiny_run.digest(tiny_run.train(
      folder, tmp_path / "plain", spec=fixed, settings=tiny_run.SETTINGS
  ))
  wide = dataclasses.replace(SETTINGS, clip_arms=(0.3, 0.5))
  assert narrow == plain != train("wide", wide)
  # A round that chose goes on with its choice, whatever it would be now.
  path = bandit.path_of(tmp_path / "kept", 0)
  path.parent.mkdir(parents=True)
  path.write_text(json.dumps({"arm": 0, "bound": 0.05, "reward": 0.0}))
  assert train("kept", wide) == narrow


def test_a_reward_that_is_not_known_teaches_nothing(tmp_path):
  """Arm 1 was followed by no verdict, so only arm 0 was tried."""
  for number, (arm, reward) in enumerate([(0, 0.5), (1, 0.25)]):
    path = bandit.path_of(tmp_path, number)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"arm": arm, "bound": 0.1, "reward": reward}))
  chosen = bandit.controls(SETTINGS, tmp_path, 2, float("nan"))
  assert chosen == {"clip_low": 0.3, "clip_high": 0.3}


def test_an_objective_without_these_bounds_is_refused(tmp_path):
  with pytest.raises(ValueError, match="train.clip_bandit: ucb1 .* ctpo has"):
    bandit.check(SETTINGS, tiny_run.SPEC)
  bandit.check(tiny_run.SETTINGS, tiny_run.SPEC)
