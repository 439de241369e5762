"""A validation gradient that rollout batches share is stored, to the bit."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.curation import influence
from jaxrl_llm.training import attribution
from jaxrl_llm.training import prepare
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored

# 8 groups in rollout batches of 2: four batches of one update each.
SETTINGS = dataclasses.replace(
    tiny_run.SETTINGS, groups_per_batch=2, epochs=1, checkpoint_every=1
)
EVERY_SECOND = influence.Influence(refresh_batches=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  return tiny_run.write(tmp_path_factory.mktemp("data") / "round", rollouts)


def train(folder, workdir, step):
  return tiny_run.train(
      folder,
      workdir,
      settings=SETTINGS,
      curation=step,
      validation=tiny_run.make_rollouts(groups=2, seed=7),
  )


def scores(workdir, number):
  position = state_lib.Position(batch=number)
  return stored.load(prepare.path_of(workdir, position)).terms["scores"]


@pytest.fixture
def made(monkeypatch):
  """The number of updates at which each gradient was made."""
  updates, make = [], attribution.direction_of

  def note(trainer, state, *rest):
    updates.append(state.updates)
    return make(trainer, state, *rest)

  monkeypatch.setattr(attribution, "direction_of", note)
  return updates


def test_a_batch_is_scored_by_the_one_made_before(
    folder, tmp_path, monkeypatch
):
  used, made = [], []
  score, make = attribution.scores, attribution.direction_of

  def note_used(*given):
    used.append(jax.device_get(given[-1]))
    return score(*given)

  def note_made(*given):
    made.append(jax.device_get(make(*given)))
    return make(*given)

  monkeypatch.setattr(attribution, "scores", note_used)
  monkeypatch.setattr(attribution, "direction_of", note_made)
  train(folder, tmp_path, EVERY_SECOND)
  assert len(used) == 4
  for found, wanted in zip(used, np.repeat(np.arange(2), 2)):
    jax.tree.map(np.testing.assert_array_equal, found, made[wanted])
  assert np.any(made[0]["embedding"] != made[1]["embedding"])


def test_every_second_batch_makes_one(folder, tmp_path, made):
  train(folder, tmp_path / "second", EVERY_SECOND)
  assert made == [0, 2]
  made.clear()
  train(folder, tmp_path / "each", influence.Influence())
  assert made == [0, 1, 2, 3]
  first = [scores(tmp_path / name, 0) for name in ("second", "each")]
  np.testing.assert_array_equal(*first)
  later = [scores(tmp_path / name, 1) for name in ("second", "each")]
  assert np.abs(later[0] - later[1]).max() > 1e-3 * np.abs(later[1]).max()
  kept = (tmp_path / "second/prepared").glob("direction_*")
  assert [path.name for path in kept] == ["direction_2"]
  assert not list((tmp_path / "each/prepared").glob("direction_*"))


def test_a_resume_reads_it(folder, tmp_path, made, monkeypatch):
  """Killed before the second batch is prepared, with the first's gradient."""
  whole = train(folder, tmp_path / "whole", EVERY_SECOND)
  save, calls = stored.save, []

  def save_or_die(*args):
    calls.append(1)
    if len(calls) == 2:
      raise KeyboardInterrupt
    return save(*args)

  with monkeypatch.context() as patch:
    patch.setattr(stored, "save", save_or_die)
    with pytest.raises(KeyboardInterrupt):
      train(folder, tmp_path / "killed", EVERY_SECOND)
  made.clear()
  found = train(folder, tmp_path / "killed", EVERY_SECOND)
  assert made == [2]
  assert tiny_run.digest(found) == tiny_run.digest(whole)


def test_a_lost_one_is_refused(folder, tmp_path, monkeypatch):
  restored = prepare.path_of(tmp_path, state_lib.Position(batch=1))
  rename = stored.save

  def save(path, *args):
    rename(path, *args)
    for lost in tmp_path.glob("prepared/direction_*"):
      lost.rename(tmp_path / "lost")

  monkeypatch.setattr(stored, "save", save)
  with pytest.raises(ValueError, match="direction_0: missing"):
    train(folder, tmp_path, EVERY_SECOND)
  assert not restored.exists()
