"""Checkpoints are there as a whole or not at all."""

import dataclasses
import errno
import shutil

import jax
import jax.numpy as jnp
import numpy as np
from orbax import checkpoint as ocp
import pytest

from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib

OPTIMIZER = optimizer.build(settings_lib.TrainSettings())


def make_state(updates: int) -> state_lib.TrainState:
  params = {
      "layers": {"w": jnp.arange(6.0).reshape(2, 3) + updates},
      "out": jnp.ones(4) / 3,
  }
  made = state_lib.create(params, OPTIMIZER, "lineage-1")
  grads = jax.tree.map(lambda leaf: leaf + 1, params)
  opt_state = OPTIMIZER.update(grads, made.opt_state, params)[1]
  counters = state_lib.Counters(
      jnp.int32(updates), jnp.int32(2), jnp.int32(1)
  )
  return dataclasses.replace(
      made,
      opt_state=opt_state,
      counters=counters,
      position=state_lib.Position(3, 1, 0, updates),
      allocation={"alpha": [0.1, 1 / 3]},
  )


def save(folder, updates, kept=2):
  return checkpoints.save(
      folder,
      make_state(updates),
      kept=kept,
      config={"seed": 1},
  )


def test_a_full_disk_is_said_and_the_last_checkpoint_stays(
    tmp_path, monkeypatch
):
  path = save(tmp_path, 7, kept=1)

  def fail(self, *args, **kwargs):
    raise ValueError("RESOURCE_EXHAUSTED: Error writing \"d/9c\"")

  monkeypatch.setattr(ocp.Checkpointer, "save", fail)
  with pytest.raises(OSError, match="No space left on device.*step_8") as info:
    save(tmp_path, 8, kept=1)
  assert info.value.errno == errno.ENOSPC
  assert checkpoints.latest(tmp_path) == path


def test_everything_comes_back_to_the_bit(tmp_path):
  path = save(tmp_path, 7)
  want = make_state(7)
  got = checkpoints.restore(path, want.params, OPTIMIZER)
  assert jax.tree.structure(got.state.opt_state) == jax.tree.structure(
      want.opt_state
  )
  for left, right in zip(
      jax.tree.leaves((got.state.params, got.state.opt_state)),
      jax.tree.leaves((want.params, want.opt_state)),
      strict=True,
  ):
    assert left.dtype == right.dtype
    np.testing.assert_array_equal(left, right)
  assert got.state.position == state_lib.Position(3, 1, 0, 7)
  assert (got.state.updates, got.state.steps) == (7, 9)
  assert int(got.state.counters.bad_in_a_row) == 1
  assert got.state.lineage == "lineage-1"
  assert got.config == {"seed": 1}
  assert got.state.allocation == {"alpha": [0.1, 1 / 3]}
  alone = checkpoints.restore_params(path, want.params)
  np.testing.assert_array_equal(alone["out"], want.params["out"])


def test_latest_is_by_number_and_complete(tmp_path):
  """step_9, step_10, step_100 -> 100; an incomplete one is not."""
  assert checkpoints.latest(tmp_path) is None
  for updates in (9, 10, 100):
    save(tmp_path, updates, kept=3)
  shutil.copytree(tmp_path / "step_100", tmp_path / "step_200")
  shutil.rmtree(tmp_path / "step_200" / "optimizer")
  (tmp_path / "step_300").mkdir()
  assert list(checkpoints.complete_steps(tmp_path)) == [9, 10, 100]
  assert checkpoints.latest(tmp_path).name == "step_100"
  # An incomplete folder in the way of a save is replaced by the whole one.
  save(tmp_path, 200, kept=3)
  assert list(checkpoints.complete_steps(tmp_path)) == [10, 100, 200]


def test_a_crash_during_save_leaves_the_old_one(tmp_path, monkeypatch):
  """With one kept, the old one goes only after the new is safe."""
  save(tmp_path, 1, kept=1)
  saved = checkpoints.ocp.Checkpointer.save

  def crash_before_rename(self, path, **kwargs):
    saved(self, path, **kwargs)
    path.rename(path.with_name(path.name + ".orbax-checkpoint-tmp"))
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(checkpoints.ocp.Checkpointer, "save", crash_before_rename)
    with pytest.raises(KeyboardInterrupt):
      save(tmp_path, 2, kept=1)
  assert checkpoints.latest(tmp_path).name == "step_1"
  checkpoints.restore(
      tmp_path / "step_1", make_state(1).params, OPTIMIZER
  )
  save(tmp_path, 2, kept=1)
  assert [path.name for path in tmp_path.iterdir()] == ["step_2"]


def test_a_number_that_exists_is_left_alone(tmp_path):
  path = save(tmp_path, 1)
  before = (path / "meta" / "metadata").stat().st_mtime_ns
  assert save(tmp_path, 1) == path
  assert (path / "meta" / "metadata").stat().st_mtime_ns == before


def test_a_round_without_an_update_is_behind_a_resumed_run(tmp_path):
  """Same updates, next round: the arrays stay, the position moves on."""
  path = save(tmp_path, 1)
  arrays = (path / "params" / "_METADATA").stat().st_mtime_ns
  state = make_state(1)
  state = dataclasses.replace(state, position=state.position.next_round(1))
  saved = checkpoints.save(tmp_path, state, kept=2, config={"seed": 1})
  assert saved == path
  assert (path / "params" / "_METADATA").stat().st_mtime_ns == arrays
  got = checkpoints.restore(path, state.params, OPTIMIZER).state
  assert got.position == state_lib.Position(4, 0, 0, 0, 1, 1)


def test_another_model_gives_one_clear_line(tmp_path):
  path = save(tmp_path, 1)
  with pytest.raises(ValueError, match="step_1: expected .* delete") as error:
    checkpoints.restore(path, {"other": jnp.ones(2)}, OPTIMIZER)
  assert "\n" not in str(error.value)


def test_arrays_that_are_cut_off_give_one_clear_line(tmp_path):
  path = save(tmp_path, 7)
  for file in (path / "params").rglob("d/*"):
    if file.stat().st_size:
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
  with pytest.raises(ValueError, match="delete the folder") as error:
    checkpoints.restore_params(path, make_state(7).params)
  assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_what_orbax_says_of_large_arrays_is_cut_short(tmp_path, monkeypatch):
  path = save(tmp_path, 7)

  def fail(self, *args, **kwargs):
    raise Exception("Encountered error: (0, 8). See full details: {\n 'base'")

  monkeypatch.setattr(ocp.Checkpointer, "restore", fail)
  with pytest.raises(ValueError, match=r"error: \(0, 8\); restore"):
    checkpoints.restore_params(path, make_state(7).params)


def test_masters_must_be_float32():
  with pytest.raises(ValueError, match="expected float32 masters"):
    state_lib.create({"w": jnp.ones(2, jnp.bfloat16)}, OPTIMIZER, "l")
