"""A critic beside the policy: what moves, when, and that a run resumes."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.curation import methods
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.training import critic_learning
from jaxrl_llm.training import loop
from jaxrl_llm.training import metrics
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import prepare
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib

GAE = algorithms.build(
    {"name": "vcppo", "correction": "none", "value_clip": 0.0}
)
STATIC = algorithms.build({"name": "dvpo", "correction": "none"})
KINDS = ("network", "head")


def make(spec=GAE, settings=tiny_run.SETTINGS, **fields) -> critic_lib.Critic:
  chosen = critic_lib.CriticSettings(**{"learning_rate": 3e-2} | fields)
  return critic_lib.build(
      tiny_run.POLICY, chosen, settings, spec, tiny_run.mesh()
  )


def start(critic, workdir, settings=tiny_run.SETTINGS):
  """Returns the latest checkpoint's state, or a new one, with the critic."""
  transform = optimizer.build(settings)
  path = checkpoints.latest(workdir / "checkpoints")
  if path is not None:
    like = tiny_run.POLICY.shapes
    return checkpoints.restore(path, like, transform, critic.like()).state
  state = state_lib.create(tiny_run.params(), transform, tiny_run.LINEAGE)
  return dataclasses.replace(state, critic=critic.create(tiny_run.params()))


def train(folder, workdir, critic, round=0, settings=tiny_run.SETTINGS):
  return loop.train(
      tiny_run.POLICY, start(critic, workdir, settings), critic.spec, settings,
      [folder], workdir, tokenizer_fingerprint="tokenizer", seed=5,
      round=round, critic=critic,
  )


def digest(state) -> str:
  whole = dataclasses.replace(
      state, params=(state.params, state.critic.params),
      opt_state=(state.opt_state, state.critic.opt_state),
  )
  return tiny_run.digest(whole)


def same(left, right) -> bool:
  pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
  return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """Two rounds of records of the start policy."""
  root = tmp_path_factory.mktemp("critic")
  result = []
  for round in (0, 1):
    made = tiny_run.make_rollouts(round=round, seed=round)
    made = tiny_run.behave(made, tiny_run.params())
    result.append(tiny_run.write(root / str(round), made, round=round))
  return result


@pytest.mark.parametrize("kind", KINDS)
def test_pretraining_moves_the_critic_alone(folders, tmp_path, kind):
  critic = make(kind=kind, pretrain_rounds=1)
  before = start(critic, tmp_path)
  initial = jax.device_get((before.params, before.critic.params))
  state = train(folders[0], tmp_path, critic)
  assert same(state.params, initial[0]) and state.updates == 0
  assert state.position.round == 1
  for left, right in zip(
      jax.tree.leaves(state.critic.params), jax.tree.leaves(initial[1])
  ):
    assert not np.array_equal(left, right)
  # A process that ends here goes on with the same critic.
  assert digest(start(critic, tmp_path)) == digest(state)
  state = train(folders[1], tmp_path, critic, round=1)
  assert state.updates == 8 and not same(state.params, initial[0])
  kinds = [r["kind"] for r in metrics.read(tmp_path / "metrics.jsonl")]
  assert kinds.count("critic") == 4 and kinds.count("update") == 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_dies_anywhere_ends_with_the_same_bits(
    folders, tmp_path, monkeypatch, kind
):
  critic = make(kind=kind)
  whole = train(folders[0], tmp_path / "whole", critic)
  fit, update = critic_learning.fit, loop._update
  for name, dying, calls in (("fit", fit, 2), ("update", update, 6)):
    left = [calls]

    def die(*args, dying=dying, left=left):
      left[0] -= 1
      if not left[0]:
        raise KeyboardInterrupt
      return dying(*args)

    workdir = tmp_path / name
    with monkeypatch.context() as patch:
      place = (critic_learning, "fit") if name == "fit" else (loop, "_update")
      patch.setattr(*place, die)
      with pytest.raises(KeyboardInterrupt):
        train(folders[0], workdir, critic)
    assert checkpoints.latest(workdir / "checkpoints") is not None
    state = train(folders[0], workdir, critic)
    assert digest(state) == digest(whole)
    left, right = (
        [{k: v for k, v in record.items() if "per_second" not in k}
         for record in metrics.read(path / "metrics.jsonl")]
        for path in (workdir, tmp_path / "whole")
    )
    assert left == right
  # Both kept checkpoints are of the second batch; no other critic is kept.
  found = (tmp_path / "whole/checkpoints").glob("critic_*")
  assert [path.name for path in found] == ["critic_4"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_whose_updates_are_all_skipped_ends_the_run(
    folders, tmp_path, kind
):
  """Skipped updates of an earlier round and of another process count too."""
  settings = dataclasses.replace(tiny_run.SETTINGS, max_bad_updates=6)
  critic = make(
      settings=settings, kind=kind, learning_rate=1e30, pretrain_rounds=2
  )
  state = train(folders[0], tmp_path, critic, settings=settings)
  assert int(state.critic.counters.bad_in_a_row) == 4
  assert start(critic, tmp_path, settings).critic.counters.bad_in_a_row == 4
  with pytest.raises(FloatingPointError, match="critic: 6 updates in a row"):
    train(folders[1], tmp_path, critic, round=1, settings=settings)


def test_a_damaged_critic_is_named_with_the_way_back(folders, tmp_path):
  settings = dataclasses.replace(tiny_run.SETTINGS, checkpoint_every=100)
  critic = make(settings=settings)
  train(folders[0], tmp_path, critic, settings=settings)
  whole = digest(train(folders[1], tmp_path, critic, 1, settings))
  last = checkpoints.latest(tmp_path / "checkpoints")
  damaged = last.parent / "critic_8"
  for harm in ((damaged / "state/manifest.ocdbt").unlink,
               lambda: shutil.rmtree(damaged)):
    harm()
    remedy = f"critic_8: expected.*delete it and {last.name} to fall back"
    with pytest.raises(ValueError, match=remedy):
      start(critic, tmp_path, settings)
  shutil.rmtree(last)
  assert digest(train(folders[1], tmp_path, critic, 1, settings)) == whole
  assert digest(start(critic, tmp_path, settings)) == whole


def test_advantages_and_targets_are_those_of_the_records(folders, tmp_path):
  """By hand, from the values of a critic that has learned something."""
  critic = make(pretrain_rounds=1)
  train(folders[0], tmp_path, critic)
  train(folders[1], tmp_path, critic, round=1)
  path = prepare.path_of(tmp_path, state_lib.Position(round=1))
  prepared = stored.load(path)
  made = tiny_run.make_rollouts(round=1, seed=1)
  known = {rollout.record_id: rollout for rollout in made}
  terms = prepared.of(prepared.record_ids)
  advantages, masks = [], []
  for record, values, target in zip(
      prepared.record_ids, terms["proximal_values"], terms["returns"]
  ):
    rollout = known[int(record)]
    mask = rollout.response_mask
    trained = values[mask].astype(float)
    assert np.abs(trained).max() > 0
    later = np.append(trained[1:], 0.0)
    rewards = np.zeros(mask.sum())
    rewards[-1] = rollout.reward
    errors = rewards + later - trained
    found, trace = [], 0.0
    for error in errors[::-1]:
      trace = error + 0.95 * trace
      found.insert(0, trace)
    advantages += found
    masks.append(mask)
    np.testing.assert_allclose(target[mask], rollout.reward, atol=1e-5)
  wanted = np.array(advantages)
  wanted = (wanted - wanted.mean()) / wanted.std(ddof=1)
  found = np.concatenate(
      [row[mask] for row, mask in zip(terms["advantages"], masks)]
  )
  np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_a_critic_learns_what_its_prompt_is_worth(tmp_path):
  """Rewards that the prompt decides: most of their variance is explained."""
  made = [
      dataclasses.replace(rollout, reward=float(rollout.prompt_id % 2))
      for rollout in tiny_run.make_rollouts(groups=8, samples=4)
  ]
  made = tiny_run.behave(made, tiny_run.params())
  folder = tiny_run.write(tmp_path / "shards", made)
  settings = dataclasses.replace(tiny_run.SETTINGS, groups_per_batch=0)
  critic = make(
      settings=settings, pretrain_rounds=1, epochs=20, learning_rate=1e-2
  )
  state = train(folder, tmp_path / "run", critic, settings=settings)
  again = [
      dataclasses.replace(rollout, round=1, record_id=rollout.record_id + 1)
      for rollout in made
  ]
  folder = tiny_run.write(tmp_path / "again", again, round=1)
  train(folder, tmp_path / "run", critic, round=1, settings=settings)
  shares = [
      record["critic/explained_variance"]
      for record in metrics.read(tmp_path / "run/metrics.jsonl")
      if record["kind"] == "batch"
  ]
  assert state.updates == 0
  assert abs(shares[0]) < 1e-6 and shares[1] > 0.5, shares


def test_a_static_critic_is_frozen_after_its_pretraining(folders, tmp_path):
  critic = make(STATIC, pretrain_rounds=1)
  first = train(folders[0], tmp_path, critic)
  learned = jax.device_get(first.critic.params)
  second = train(folders[1], tmp_path, critic, round=1)
  assert same(second.critic.params, learned)
  assert second.updates == 8 and not same(second.params, first.params)


def test_a_static_critic_that_nothing_pretrains_is_refused():
  with pytest.raises(ValueError, match="critic.pretrain_rounds: dvpo"):
    make(STATIC)


def test_the_gradient_does_not_depend_on_the_layout(folders, tmp_path):
  """Rows of other lengths, other micro-batches: the same critic."""
  states = []
  for rows, tokens in ((2, 32), (8, 16), (1, 64)):
    settings = dataclasses.replace(
        tiny_run.SETTINGS, rows_per_microbatch=rows, tokens_per_row=tokens,
        groups_per_minibatch=4,
    )
    critic = make(settings=settings, pretrain_rounds=1)
    workdir = tmp_path / f"{rows}_{tokens}"
    state = train(folders[0], workdir, critic, settings=settings)
    states.append(jax.device_get(state.critic.params["head"]["weight"]))
  for other in states[1:]:
    np.testing.assert_allclose(other, states[0], rtol=2e-3, atol=2e-4)


def test_finished_only_learns_from_whole_responses(tmp_path, monkeypatch):
  """Unfinished responses are left out; finished ones count from their start."""
  spec = algorithms.build({"name": "tppo", "correction": "none"})
  made = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  made = [
      dataclasses.replace(
          rollout, finish_reason="window" if number % 2 else "stop",
          window_start=0 if number % 2 else 2,
      )
      for number, rollout in enumerate(made)
  ]
  folder = tiny_run.write(tmp_path / "shards", made)
  seen = []
  pieces = critic_learning._pieces

  def watch(critic, rows, terms):
    seen.extend(rows.rollouts)
    return pieces(critic, rows, terms)

  monkeypatch.setattr(critic_learning, "_pieces", watch)
  train(folder, tmp_path / "run", make(spec))
  assert len(seen) == 16
  assert all(r.finish_reason == "stop" and not r.window_start for r in seen)


def test_what_counts_solved_responses_refuses_unfinished_ones(tmp_path):
  made = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  made[5] = dataclasses.replace(made[5], finish_reason="window")
  folder = tiny_run.write(tmp_path / "shards", made)
  with pytest.raises(ValueError, match="codapo counts solved.* and 1 of the"):
    loop.train(
        tiny_run.POLICY, start(make(), tmp_path), GAE, tiny_run.SETTINGS,
        [folder], tmp_path, tokenizer_fingerprint="tokenizer", seed=5,
        round=0, critic=make(), curation=methods.build({"name": "codapo"}),
    )
  assert not (tmp_path / "prepared").exists()


def test_a_checkpoint_without_a_critic_is_said_to_have_none(tmp_path):
  transform = optimizer.build(tiny_run.SETTINGS)
  state = state_lib.create(tiny_run.params(), transform, tiny_run.LINEAGE)
  path = checkpoints.save(tmp_path, state, kept=1, config={})
  with pytest.raises(ValueError, match="expected a checkpoint with a critic"):
    checkpoints.restore(
        path, tiny_run.POLICY.shapes, transform, make().like()
    )


@pytest.mark.parametrize(
    "spec, critic, message",
    [
        (GAE, None, "critic: vcppo takes its advantages from a critic, found"),
        (tiny_run.SPEC, make(), "critic: ctpo has none, found one"),
    ],
    ids=["missing", "idle"],
)
def test_critic_and_objective_belong_together(spec, critic, message):
  with pytest.raises(ValueError, match=message):
    trainer_lib.build(
        tiny_run.POLICY, spec, tiny_run.SETTINGS, mesh=None, seed=0,
        reference_params=None, critic=critic,
    )


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"kind": "table"}, "critic.kind: expected one of network, head"),
        ({"kind": "head", "path": "x"}, "critic.path: a head reads"),
        ({"epochs": 0}, "critic.epochs: expected at least 1"),
        ({"pretrain_rounds": -1}, "critic.pretrain_rounds: expected at least"),
        ({"warmup_updates": 2**31}, "warmup_updates: .* less than 2³¹, found"),
        ({"learning_rate": float("inf")}, "critic.learning_rate: expected 0"),
    ],
)
def test_settings_are_refused_in_one_line(fields, message):
  with pytest.raises(ValueError, match=message):
    critic_lib.CriticSettings(**fields)


def test_the_rate_is_twice_the_policys_unless_said():
  settings = critic_lib.CriticSettings()
  assert settings.training(tiny_run.SETTINGS).learning_rate == 6e-2
