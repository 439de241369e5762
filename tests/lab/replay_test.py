"""Objectives on the same mini-batches: what training gives, side by side."""

import dataclasses
import json

import numpy as np
import pytest
import tiny_run

from jaxrl_llm.lab import bench as bench_lib
from jaxrl_llm.lab import objectives
from jaxrl_llm.lab import replay
from jaxrl_llm.training import metrics
from jaxrl_llm.training import prepare

# 2 rollout batches of 4 groups: 2 epochs of 2 mini-batches each.
SETTINGS = dataclasses.replace(
    tiny_run.SETTINGS, groups_per_batch=4, keep_uniform_groups=True
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Shards that the start policy drew."""
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  return tiny_run.write(tmp_path_factory.mktemp("fresh"), rollouts)


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
  """Shards that another policy drew."""
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params(9), 7)
  path = tmp_path_factory.mktemp("stale")
  return tiny_run.write(path, rollouts, policy_version=7)


def make_bench(folder, **changes):
  given = dict(
      policy=tiny_run.POLICY,
      params=tiny_run.params(),
      settings=SETTINGS,
      folders=[folder],
      tokenizer_fingerprint="tokenizer",
      lineage=tiny_run.LINEAGE,
      seed=5,
      mesh=tiny_run.mesh(),
      updates=5,
  )
  return bench_lib.Bench(**given | changes)


def run(bench, text, place, exact=None, correction="none"):
  """Replays; returns rows by label, and the cosines."""
  entries = objectives.parse(text, correction)
  folders = [place / entry.folder for entry in entries]
  rows = {
      entry.label: replay.run(bench, entry, bench.params, path, exact)
      for entry, path in zip(entries, folders)
  }
  return rows, replay.matrices(folders)


@pytest.mark.parametrize(
    "name", ["ctpo", "dpo", "espo", "sis:selection_topk=9", "topr"]
)
def test_rows_are_what_training_writes(name, stale, tmp_path):
  """Of its first update, and of the sixth, in the second rollout batch.

  espo ends the epochs on a batch early: the mini-batch is measured all the
  same, so only the start is compared.
  """
  entry, = objectives.parse(name, "none")
  rows, _ = run(make_bench(stale), name, tmp_path)
  tiny_run.train(
      stale, tmp_path / "train", spec=entry.spec, settings=SETTINGS,
      reference_params=tiny_run.params(),
  )
  lines = metrics.read(tmp_path / "train/metrics.jsonl")
  updates = [line for line in lines if line["kind"] == "update"]
  pairs = [("start", updates[0])]
  if name != "espo":
    pairs.append(("after", updates[5]))
    assert updates[5]["batch"] == 1
  for stage, update in pairs:
    found = rows[name][stage]
    shared = (found.keys() & update.keys()) - {"updates"}
    assert {"loss", "grad_norm", "clip", "kl/behavior_k3"} <= shared
    line, = [
        line for line in lines
        if line["kind"] == "positions" and line["step"] == update["step"]
    ]
    by_position = found["positions"]
    assert by_position["edges"] == line["edges"]
    for curve, values in line.items():
      if curve.startswith(("log_ratio/mean", "cumulative/mean", "clip")):
        assert by_position[curve] == pytest.approx(values, abs=1e-5)
    for key in shared:
      assert found[key] == pytest.approx(update[key], rel=2e-5, abs=2e-6), key


def test_updates_that_were_applied_are_counted(folder, tmp_path):
  """espo with a bound that nothing passes stops before the second update."""
  text = "espo:stop_deviation=1e-6,ppo"
  rows, _ = run(make_bench(folder, updates=3), text, tmp_path)
  assert rows["espo:stop_deviation=1e-6"]["after"]["updates"] == 1
  assert rows["ppo"]["after"]["updates"] == 3
  assert rows["ppo"]["start"]["moved"] == 0 < rows["ppo"]["after"]["moved"]


def test_gradients_that_are_one_on_policy(folder, tmp_path):
  """At ratio 1 all are −A ∇log π, times the weights of the aggregation."""
  by_token = "ppo,cispo,cppo_prefix"
  by_sequence = "gspo,ctpo,sapo"
  text = f"{by_token},{by_sequence},topr"
  rows, cosines = run(make_bench(folder, updates=2), text, tmp_path)
  start = np.array(cosines["start"])
  np.testing.assert_allclose(start[:3, :3], 1.0, atol=1e-5)
  np.testing.assert_allclose(start[3:6, 3:6], 1.0, atol=1e-5)
  assert start[0, 3] < 1 - 1e-3  # Token mean, and mean over sequences.
  assert start[0, 6] < 1 - 1e-3  # Sum over tokens, another advantage.
  norms = {label: row["start"]["grad_norm"] for label, row in rows.items()}
  for names in (by_token, by_sequence):
    first, *others = names.split(",")
    for name in others:
      assert norms[name] == pytest.approx(norms[first], rel=1e-4)
  # Afterwards each is at a place of its own.
  after = np.array(cosines["after"])
  off_diagonal = after[~np.eye(7, dtype=bool)]
  assert np.max(off_diagonal) < 1 - 1e-6
  np.testing.assert_allclose(np.diag(after), 1.0, atol=1e-9)


def test_equal_objectives_stay_equal(stale, tmp_path):
  text = "one=ctpo,other=ctpo,third=ctpo:log_clip_high=0.01"
  _, cosines = run(make_bench(stale), text, tmp_path, correction="bypass")
  for name in ("start", "after", "moved"):
    assert cosines[name][0][1] == pytest.approx(1.0, abs=1e-9)
  assert cosines["moved"][0][2] < 1 - 1e-4


def test_a_row_beside_the_exact_gradient(folder, tmp_path):
  """It is compared with the gradient of −J: the loss falls where J rises."""

  def exact(params, rollouts):
    del rollouts
    return 0.25, params

  bench = make_bench(folder, updates=1)
  rows, _ = run(bench, "ppo", tmp_path, exact)
  gradient = np.load(tmp_path / "ppo/start.npy").astype(np.float64)
  start = np.concatenate([
      np.ravel(leaf) for leaf in tiny_run.jax.tree.leaves(tiny_run.params())
  ]).astype(np.float64)
  wanted = -(gradient @ start) / np.linalg.norm(gradient)
  wanted /= np.linalg.norm(start)
  assert rows["ppo"]["start"]["exact/reward"] == 0.25
  assert rows["ppo"]["start"]["exact/cosine"] == pytest.approx(wanted)


def test_what_is_there_is_read_and_not_made_again(
    folder, tmp_path, monkeypatch
):
  bench = make_bench(folder, updates=2)
  whole, _ = run(bench, "ppo", tmp_path / "whole")
  calls = []
  obtain = prepare.obtain
  monkeypatch.setattr(
      prepare, "obtain", lambda *given: calls.append(1) or obtain(*given)
  )
  assert run(bench, "ppo", tmp_path / "whole")[0] == whole and not calls
  # Killed before its rows were written: what it prepared is there already.
  (tmp_path / "whole/ppo" / replay.ROWS).unlink()
  assert run(bench, "ppo", tmp_path / "whole")[0] == whole and calls


def test_every_objective_reads_the_same_records(folder, tmp_path):
  """Also one that would keep groups of equal rewards, or imitates alone."""
  settings = dataclasses.replace(SETTINGS, keep_uniform_groups=False)
  bench = make_bench(folder, settings=settings)
  orders = []
  for entry in objectives.parse("grpo,topr,sft,reinforce_pp", "none"):
    work = bench_lib.open_round(bench, entry)
    orders.append([p.records.tolist() for p in bench_lib.schedule(bench, work)])
  assert all(order == orders[0] for order in orders)
  grouped = work.index.group_ids[np.concatenate(orders[0])]
  rewards = {}
  for group, reward in zip(work.index.group_ids, work.index.rewards):
    rewards.setdefault(int(group), set()).add(float(reward))
  assert {len(rewards[int(group)]) for group in grouped} == {2}


def test_refusals(folder):
  bench = make_bench(folder)
  reasons = {
      entry.label: bench_lib.check(bench, entry)
      for entry in objectives.parse("grpo,vapo,remax", "none")
  }
  assert reasons["grpo"] == ""
  assert "a critic" in reasons["vapo"]
  assert "greedy" in reasons["remax"]
  sis, = objectives.parse("sis:selection_topk=3", "bypass")
  assert "expected the top 3 ids" in bench_lib.check(bench, sis)
  sis, = objectives.parse("sis", "none")
  assert "top 100 ids, and the model has 32" in bench_lib.check(bench, sis)
  grpo, = objectives.parse("grpo", "none")
  work = bench_lib.open_round(bench, grpo)
  for updates in (0, 8):
    with pytest.raises(ValueError, match="^lab.updates: .* 8 mini-batches"):
      bench_lib.places(make_bench(folder, updates=updates), work)
  empty = dataclasses.replace(work, batches=[])
  with pytest.raises(ValueError, match="^lab.shards: .* unequal rewards"):
    bench_lib.places(bench, empty)


def test_rows_are_valid_json(folder, tmp_path):
  """A number that is not finite is null."""
  run(make_bench(folder, updates=1), "ppo", tmp_path)
  text = (tmp_path / "ppo" / replay.ROWS).read_text()
  json.loads(text, parse_constant=lambda word: pytest.fail(word))
