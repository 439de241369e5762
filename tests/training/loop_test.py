"""The loop on hand-made records: what it skips, stops, refuses and reports."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import metrics
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import prepare
from jaxrl_llm.training import step
from jaxrl_llm.training import trainer as trainer_lib

# The shape of micro-batches stays, so that functions compile once.
ONE_BATCH = dataclasses.replace(tiny_run.SETTINGS, groups_per_batch=0)


@pytest.fixture(scope="module")
def rollouts():
  return tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rollouts):
  return tiny_run.write(tmp_path_factory.mktemp("data") / "round", rollouts)


def updates_of(workdir):
  records = metrics.read(workdir / "metrics.jsonl")
  return [record for record in records if record["kind"] == "update"]


def check_positions(workdir, updates):
  """Each update has its curves, and TensorBoard nothing of them."""
  found = metrics.read(workdir / "metrics.jsonl")
  curves = [record for record in found if record["kind"] == "positions"]
  assert len(curves) == len(updates)
  for record, update in zip(curves, updates):
    assert (record["step"], record["round"]) == (update["step"], 0)
    assert sum(n or 0 for n in record["tokens"]) == update["tokens"]
    assert record["edges"] == [0, 1, 2, 4, 8, 16, 32]
    assert len(record["log_ratio/q50"]) == 6 and record["tv"][-1] is None
  for events in (workdir / "tensorboard").iterdir():
    assert b"positions/" not in events.read_bytes()


def spoil_advantages(monkeypatch, chosen):
  """Makes the advantages of chosen records NaN; chosen maps ids to bools."""
  compute = prepare.compute

  def spoiled(*args):
    prepared = compute(*args)
    values = prepared.terms["advantages"].copy()
    values[chosen(prepared.record_ids)] = np.nan
    terms = prepared.terms | {"advantages": values}
    return dataclasses.replace(prepared, terms=terms)

  monkeypatch.setattr(prepare, "compute", spoiled)


def test_an_update_that_is_not_finite_is_skipped_and_counted(
    folder, tmp_path, monkeypatch
):
  """One bad record in one mini-batch of each epoch: no update of the two."""
  spoil_advantages(monkeypatch, lambda ids: ids == ids[0])
  settings = dataclasses.replace(ONE_BATCH, checkpoint_every=1)
  state = tiny_run.train(folder, tmp_path, settings=settings)
  updates = updates_of(tmp_path)
  assert len(updates) == 8
  skipped = [r["step"] for r in updates if r["skipped"]]
  assert len(skipped) == 2
  assert (state.updates, state.steps) == (6, 8)
  assert int(state.counters.bad_updates) == 2
  assert int(state.counters.bad_in_a_row) == (1 if skipped[-1] == 8 else 0)
  assert int(state.opt_state[1][0].count) == 6
  for leaf in jax.tree.leaves((state.params, state.opt_state)):
    assert np.isfinite(np.asarray(leaf)).all()
  for record in updates:
    if record["skipped"]:
      assert record["loss"] is None and record["grad_norm"] is None
      before = [r["updates"] for r in updates if r["step"] < record["step"]]
      assert record["updates"] == max(before, default=0)
  check_positions(tmp_path, updates)
  # What came after the last checkpoint comes again, skipped updates included.
  again = tiny_run.train(folder, tmp_path, settings=settings)
  assert tiny_run.digest(again) == tiny_run.digest(state)
  assert len(updates_of(tmp_path)) == 8


def test_too_many_in_a_row_stop_the_run(folder, tmp_path, monkeypatch):
  spoil_advantages(monkeypatch, lambda ids: ids == ids)
  settings = dataclasses.replace(ONE_BATCH, max_bad_updates=3)
  with pytest.raises(FloatingPointError, match="train: 3 updates in a row"):
    tiny_run.train(folder, tmp_path, settings=settings)
  assert [r["bad_in_a_row"] for r in updates_of(tmp_path)] == [1, 2, 3]
  assert checkpoints.latest(tmp_path / "checkpoints") is None


def test_records_longer_than_a_row_are_dropped_aloud(
    folder, tmp_path, rollouts, capsys
):
  longest = max(
      r.prompt_tokens.size + r.response_tokens.size for r in rollouts
  )
  settings = dataclasses.replace(
      tiny_run.SETTINGS, tokens_per_row=longest - 1
  )
  tiny_run.train(folder, tmp_path, settings=settings)
  text = capsys.readouterr().out
  assert "longer than train.tokens_per_row (raise it" in text
  assert text.count(" records teach, of ") == 1


def test_a_step_that_would_leave_the_numbers_is_not_taken(folder, tmp_path):
  """Finite gradients, and a learning rate that no float32 holds the sum of."""
  settings = dataclasses.replace(
      ONE_BATCH, learning_rate=1e30, max_bad_updates=2
  )
  with pytest.raises(FloatingPointError, match="train: 2 updates in a row"):
    tiny_run.train(folder, tmp_path, settings=settings)
  assert all(np.isfinite(r["grad_norm"]) for r in updates_of(tmp_path))


def test_one_compilation_serves_every_size_and_control(rollouts):
  """4 and 16 records, and another clip bound, run the same function."""
  trainer = trainer_lib.build(
      tiny_run.POLICY,
      tiny_run.SPEC,
      tiny_run.SETTINGS,
      mesh=None,
      seed=0,
      reference_params=None,
  )
  trainer.steps.add.clear_cache()
  params = tiny_run.params(1)
  losses, counts = [], []
  for size, bound in ((4, 0.02), (16, 0.02), (16, 0.5)):
    trainer = dataclasses.replace(trainer, controls={"log_clip_low": bound})
    chosen = rollouts[:size]
    terms = {
        "advantages": [np.float32(-1)] * size,
        "proximal_logprobs": [r.behavior_logprobs for r in chosen],
    }
    built = minibatch.build(trainer, chosen, terms)
    counts.append(len(built.pieces))
    totals = minibatch.accumulate(trainer, params, built, 0)
    losses.append(float(totals.loss))
  assert counts[0] < counts[1]
  assert losses[1] != losses[2]
  assert trainer.steps.add._cache_size() == 1


@pytest.mark.parametrize("offset, told", [(0.0, False), (-0.5, True)])
def test_why_the_ratio_is_not_1_is_told_where_it_is_not(
    rollouts, tmp_path, capsys, offset, told
):
  records = [
      dataclasses.replace(
          rollout, behavior_logprobs=rollout.behavior_logprobs + offset
      )
      for rollout in rollouts
  ]
  folder = tiny_run.write(tmp_path / "records", records)
  tiny_run.train(folder, tmp_path, settings=ONE_BATCH)
  text = capsys.readouterr().out
  assert ("agree to float32 rounding." in text) == (not told)
  assert ("why the ratio is not 1" in text) == told
  batch = metrics.read(tmp_path / "metrics.jsonl")[0]
  assert (batch["step0/gap"] > 1e-4) == told


def test_epochs_end_early_where_the_objective_says_so(folder, tmp_path):
  """The first update has ratio 1; the second would exceed the limit."""
  spec = algorithms.build(
      {"name": "ctpo", "correction": "none", "stop_deviation": 1e-3}
  )
  state = tiny_run.train(folder, tmp_path, spec=spec)
  assert state.updates == 2
  places = [(r["batch"], r["epoch"]) for r in updates_of(tmp_path)]
  assert places == [(0, 0), (1, 0)]


def test_rounds_go_in_order_and_count_on(folder, tmp_path, rollouts):
  with pytest.raises(ValueError, match="expected the state at round 1"):
    tiny_run.train(folder, tmp_path, round=1)
  first = tiny_run.train(folder, tmp_path)
  # The second round is drawn by the policy after the first.
  version = first.updates
  second = [
      dataclasses.replace(rollout, record_id=rollout.record_id ^ 1, round=1)
      for rollout in rollouts
  ]
  drawn = tiny_run.behave(second, first.params, version)
  path = tiny_run.write(
      tmp_path / "second", drawn, round=1, policy_version=version
  )
  state = tiny_run.train(path, tmp_path, round=1)
  assert (state.position.round, state.updates) == (2, 2 * version)
  records = metrics.read(tmp_path / "metrics.jsonl")
  batches = [r for r in records if r["kind"] == "batch"]
  assert [r["round"] for r in batches] == [0, 0, 1, 1]
  # The second batch of a round is as stale as the first batch has updates.
  assert [r["staleness_max"] for r in batches] == [0, 4, 0, 4]
  assert [r["off_policy_updates"] for r in batches] == [4] * 4
  assert batches[2]["step0/log_ratio_max_abs"] <= 1e-4
  assert batches[1]["step0/log_ratio_max_abs"] > 1e-2
  assert [r["step"] for r in updates_of(tmp_path)] == list(range(1, 17))


@pytest.mark.parametrize("kept", [slice(0, 16), slice(4, None)])
def test_other_rollouts_are_refused_in_the_middle_of_a_round(
    folder, rollouts, tmp_path, kept
):
  """Fewer groups, or others: what was prepared is not theirs."""
  settings = dataclasses.replace(ONE_BATCH, checkpoints_kept=9)
  tiny_run.train(folder, tmp_path, settings=settings)
  shutil.rmtree(checkpoints.latest(tmp_path / "checkpoints"))
  other = tiny_run.write(tmp_path / "other", rollouts[kept])
  with pytest.raises(ValueError, match="other records .* train.rollouts"):
    tiny_run.train(other, tmp_path, settings=settings)


def test_the_feedback_of_a_round(rollouts, tmp_path):
  """Group 0: rewards 1, 0, 0, NaN. Its mean |A| by hand, std with ddof 1.

  Mean 1/3, std √(((2/3)² + 2 (1/3)²) / 2) = 0.57735, A = (2/3, −1/3, −1/3) /
  0.57735, mean |A| = 0.7698. Group 1: all 1, dropped. Group 2: one scored.
  """
  rewards = [1, 0, 0, np.nan, 1, 1, 1, 1, 1, np.nan, np.nan, np.nan]
  chosen = [
      dataclasses.replace(rollout, reward=float(reward))
      for rollout, reward in zip(rollouts, rewards)
  ]
  folder = tiny_run.write(tmp_path / "round", chosen)
  tiny_run.train(folder, tmp_path, settings=ONE_BATCH)
  content = json.loads((tmp_path / "feedback/round_0000.json").read_text())
  groups = {group["prompt_id"]: group for group in content["groups"]}
  shown = ("samples", "scored", "correct", "trained")
  assert [
      [groups[prompt][name] for name in shown] for prompt in range(3)
  ] == [[4, 3, 1, 3], [4, 4, 4, 0], [4, 1, 1, 1]]
  sizes = [groups[prompt]["mean_abs_advantage"] for prompt in range(3)]
  np.testing.assert_allclose(sizes, [0.7698, 0, 0], atol=1e-4)
  means = [groups[prompt]["mean_reward"] for prompt in range(3)]
  np.testing.assert_allclose(means, [1 / 3, 1, 1], rtol=1e-6)
  batch = metrics.read(tmp_path / "metrics.jsonl")[0]
  assert batch["groups_of_one"] == 1
  assert batch["reward_failed"] == 4
  assert batch["dropped/nan_reward"] == 4
  assert batch["dropped/uniform"] == 4
  assert batch["reward"] == pytest.approx(6 / 8)


def test_a_round_of_equal_rewards_teaches_nothing_and_is_passed(
    rollouts, tmp_path
):
  chosen = [dataclasses.replace(rollout, reward=1.0) for rollout in rollouts]
  folder = tiny_run.write(tmp_path / "round", chosen)
  state = tiny_run.train(folder, tmp_path, settings=ONE_BATCH)
  assert state.updates == 0 and state.position.round == 1
  (record,) = metrics.read(tmp_path / "metrics.jsonl")
  assert record["kind"] == "batch" and record["reward"] == 1.0
  assert record["dropped/uniform"] == len(chosen)
  jax.tree.map(np.testing.assert_array_equal, state.params, tiny_run.params())


def test_a_round_without_a_response_to_imitate_updates_nothing(
    rollouts, tmp_path, capsys
):
  spec = algorithms.build({"name": "sft", "imitate_above": 1.0})
  path = tiny_run.write(tmp_path / "f", rollouts)
  state = tiny_run.train(path, tmp_path / "run", spec=spec)
  assert (state.position.round, state.updates) == (1, 0)
  jax.tree.map(np.testing.assert_array_equal, state.params, tiny_run.params())
  said = capsys.readouterr().out
  assert f"the rewards of {len(rollouts)} are at most" in said
  (record,) = metrics.read(tmp_path / "run/metrics.jsonl")
  assert record["dropped/ignored"] == len(rollouts)
  # The first group whose answers are all right has no advantage, and is kept.
  right = [
      dataclasses.replace(r, reward=1.0) if r.prompt_id == 0 else r
      for r in rollouts
  ]
  path = tiny_run.write(tmp_path / "g", right)
  spec = algorithms.build({"name": "sft"})
  tiny_run.train(path, tmp_path / "again", spec=spec, settings=ONE_BATCH)
  (batch,) = (
      r for r in metrics.read(tmp_path / "again/metrics.jsonl")
      if r["kind"] == "batch"
  )
  assert batch["records"] == sum(r.reward > 0 for r in right)
  assert batch["dropped/uniform"] == 0


def test_a_loglinear_proximal_policy_is_one_update_behind(
    folder, tmp_path, rollouts, monkeypatch
):
  """With v − v_μ = n, log π − log prox = (log π − log μ) / n; n = 0 as 1.

  A skipped update, here the one whose mini-batch holds a spoiled record, is
  no new version. The second round counts from the policy that drew it.
  """
  spoil_advantages(monkeypatch, lambda ids: ids == rollouts[0].record_id)
  spec = algorithms.build({"name": "decoupled_ppo", "proximal": "loglinear"})
  first = tiny_run.train(folder, tmp_path, spec=spec, settings=ONE_BATCH)
  version = first.updates
  second = [
      dataclasses.replace(rollout, record_id=rollout.record_id ^ 1, round=1)
      for rollout in rollouts
  ]
  drawn = tiny_run.behave(second, first.params, version)
  path = tiny_run.write(
      tmp_path / "second", drawn, round=1, policy_version=version
  )
  tiny_run.train(path, tmp_path, spec=spec, settings=ONE_BATCH, round=1)
  records = updates_of(tmp_path)
  assert [r["skipped"] for r in records].count(1.0) == 2 and version == 6
  before = [0] + [int(r["updates"]) for r in records[:-1]]
  lags = [v - version * int(r["round"]) for v, r in zip(before, records)]
  assert max(lags) == 7
  for lag, record in zip(lags, records):
    np.testing.assert_allclose(
        record["kl/proximal_k1"] * max(lag, 1),
        record["kl/behavior_k1"],
        rtol=1e-3,
        atol=1e-6,
    )
    assert (abs(record["correction/mean"] - 1) > 1e-4) == (lag > 1)
  steps = step.build(tiny_run.POLICY, spec, ONE_BATCH, tiny_run.mesh())
  assert steps.add._cache_size() == 1
