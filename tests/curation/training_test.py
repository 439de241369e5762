"""Each step in a training run: on, it changes exactly what it should."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.curation import confidence
from jaxrl_llm.curation import influence
from jaxrl_llm.curation import pruning
from jaxrl_llm.data import index as indices
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import attribution
from jaxrl_llm.training import loop
from jaxrl_llm.training import metrics
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import prepare
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib

SETTINGS = dataclasses.replace(
    tiny_run.SETTINGS, groups_per_batch=0, epochs=1, groups_per_minibatch=4
)
VALIDATION = tiny_run.make_rollouts(groups=2, seed=7)
STEPS = {
    "cppo_completion": pruning.CompletionTopK(),
    "dppo_pruning": pruning.RandomPruning(),
    "ps_ppo": pruning.PrefixSampling(),
    "codapo": confidence.QuestionValue(),
    "ippo": influence.Influence(),
}


@pytest.fixture(scope="module")
def rollouts():
  return tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rollouts):
  return tiny_run.write(tmp_path_factory.mktemp("data") / "round", rollouts)


def train(folder, workdir, step):
  return tiny_run.train(
      folder, workdir, settings=SETTINGS, curation=step, validation=VALIDATION
  )


def records(workdir, kind):
  found = metrics.read(workdir / "metrics.jsonl")
  return [record for record in found if record["kind"] == kind]


def prepared(workdir):
  return stored.load(prepare.path_of(workdir, state_lib.Position()))


@pytest.fixture(scope="module")
def plain(folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("plain")
  return train(folder, workdir, None), workdir


NEUTRAL = {
    "cppo_completion": pruning.CompletionTopK(prune_share=0.0),
    "dppo_pruning": pruning.RandomPruning(prune_probability=0.0),
    "ps_ppo": pruning.PrefixSampling(full_probability=1.0),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_step_that_leaves_all_changes_nothing(name, folder, plain, tmp_path):
  state, workdir = plain
  found = train(folder, tmp_path, NEUTRAL[name])
  for left, right in zip(
      jax.tree.leaves(found.params), jax.tree.leaves(state.params)
  ):
    np.testing.assert_allclose(left, right, atol=1e-6)
  weights = prepared(tmp_path).terms["weights"]
  np.testing.assert_array_equal(weights[weights != 0], 1.0)
  for ours, theirs in zip(
      records(tmp_path, "update"), records(workdir, "update"), strict=True
  ):
    assert ours["curation/survivor_share"] == 1
    assert ours["tokens"] == theirs["tokens"]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_saves_what_it_prunes(name, folder, plain, tmp_path, rollouts):
  """Weights are stored by record; the update computes no token without one."""
  state, workdir = plain
  found = train(folder, tmp_path, STEPS[name])
  assert tiny_run.digest(found) != tiny_run.digest(state)
  file = prepared(tmp_path)
  by_id = {rollout.record_id: rollout for rollout in rollouts}
  chosen = [by_id[int(record)] for record in file.record_ids]
  rows = file.of(file.record_ids)["weights"]
  kept = sum(bool(np.any(row)) for row in rows)
  ours, theirs = records(tmp_path, "update"), records(workdir, "update")
  assert len(ours) == len(theirs) == 2
  assert sum(r["curation/survivors"] for r in ours) == kept
  counting = 0
  for rollout, row in zip(chosen, rows):
    mask = indices.trained_mask(rollout)
    places = np.flatnonzero(mask & (row != 0))
    counting += mask[: places[-1] + 1].sum() if places.size else 0
  assert sum(r["tokens"] for r in ours) == counting
  if name == "codapo":
    assert kept == len(rows)  # every question is solved by some
  else:
    assert counting < sum(r["tokens"] for r in theirs)
    assert all(r["curation/saved_tokens"] > 0 for r in ours)
  (batch,) = records(tmp_path, "batch")
  assert batch["curation/survivors"] == kept
  content = json.loads((tmp_path / "feedback/round_0000.json").read_text())
  assert sum(group["survivors"] for group in content["groups"]) == kept
  # What is not curation stays: rewards, advantages, proximal log-probs.
  other = prepared(workdir)
  assert set(file.terms) - set(other.terms) <= {"weights", "scores"}
  for term, values in other.terms.items():
    np.testing.assert_array_equal(file.terms[term], values)
  assert [r["reward"] for r in ours] == [r["reward"] for r in theirs]


def test_the_influence_filter_is_that_of_the_scores(folder, tmp_path):
  train(folder, tmp_path, STEPS["ippo"])
  file = prepared(tmp_path)
  scores = file.terms["scores"]
  want = influence.survivor_weights(scores)
  rows = file.of(file.record_ids)["weights"]
  np.testing.assert_allclose([row[0] for row in rows], want)
  assert 0 < np.sum(want > 0) < want.size
  (batch,) = records(tmp_path, "batch")
  assert batch["influence/positive_share"] == pytest.approx(
      np.mean(scores > 0)
  )
  assert batch["influence/max"] == pytest.approx(scores.max())


def test_without_a_survivor_there_is_no_update(folder, tmp_path):
  """The explicit stop: the share of survivors never reaches 1."""
  state = train(folder, tmp_path, influence.Influence(stop_share=1.0))
  assert (state.updates, state.position.round) == (0, 1)
  assert records(tmp_path, "update") == []
  (batch,) = records(tmp_path, "batch")
  assert batch["influence/stopped"] == 1
  assert batch["influence/positive_share"] > 0
  jax.tree.map(np.testing.assert_array_equal, state.params, tiny_run.params())


def test_a_resume_reads_weights_and_scores_nothing(
    folder, tmp_path, monkeypatch
):
  """Killed between the two updates, and before any checkpoint."""
  whole = train(folder, tmp_path / "whole", STEPS["ippo"])
  update, done = loop._update, []

  def update_or_die(*args):
    if done:
      raise KeyboardInterrupt
    done.append(1)
    return update(*args)

  with monkeypatch.context() as patch:
    patch.setattr(loop, "_update", update_or_die)
    with pytest.raises(KeyboardInterrupt):
      train(folder, tmp_path / "killed", STEPS["ippo"])
  monkeypatch.setattr(attribution, "scores", None)
  found = train(folder, tmp_path / "killed", STEPS["ippo"])
  assert tiny_run.digest(found) == tiny_run.digest(whole)
  # Under another curation the file is refused.
  position = state_lib.Position()
  with pytest.raises(ValueError, match="prepared with another curation"):
    path = prepare.path_of(tmp_path / "killed", position)
    with np.load(path) as content:
      key = json.loads(str(content["key"]))
    stored.load(path, key | {"curation": "none"})


def test_a_validation_set_is_asked_for(folder, tmp_path):
  with pytest.raises(ValueError, match="curation.validation_rollouts: sft"):
    tiny_run.train(folder, tmp_path, curation=STEPS["ippo"])


def make_trainer(step, overrides):
  return trainer_lib.build(
      tiny_run.POLICY,
      algorithms.build(overrides),
      SETTINGS,
      mesh=None,
      seed=0,
      reference_params=None,
      curation=step,
  )


def policy_weights(built, count):
  """float64 [count]: the sum of a record's per-token policy weights."""
  totals = np.zeros(count)
  for batch, weights in built.pieces:
    ids = np.asarray(batch.terms.sequence_ids)
    chosen = ids >= 0
    np.add.at(totals, ids[chosen], np.asarray(weights["policy"])[chosen])
  return totals


def test_denominators_obey_the_step(rollouts):
  """Token-mean over two groups of four; records 1, 2 and 6 are pruned."""
  chosen = rollouts[:8]
  overrides = {"name": "grpo", "aggregation": "token-mean"}
  counts = np.array([indices.trained_mask(r).sum() for r in chosen])
  values = np.array([1.0, 0, 0, 2.0, 0.5, 1.0, 0, 1.0])
  terms = {
      "advantages": [np.float32(1)] * 8,
      "proximal_logprobs": [r.behavior_logprobs for r in chosen],
      "weights": [
          np.full(r.response_tokens.size, value)
          for r, value in zip(chosen, values)
      ],
  }
  left = np.flatnonzero(values)
  per_group = np.repeat(counts.reshape(2, 4).sum(axis=1), 4)
  wanted = {
      pruning.CompletionTopK(): counts / counts[left].sum(),
      pruning.RandomPruning(): counts / counts.sum(),
      confidence.QuestionValue(): counts / per_group / 2,
  }
  for step, shares in wanted.items():
    built = minibatch.build(make_trainer(step, overrides), chosen, terms)
    np.testing.assert_allclose(
        policy_weights(built, left.size), (shares * values)[left], rtol=1e-5
    )
    assert built.known["curation/survivors"] == left.size
