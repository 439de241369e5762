"""A run that is killed anywhere ends with the same bits."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import loop
from jaxrl_llm.training import metrics
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import preemption
from jaxrl_llm.training import prepare
from jaxrl_llm.training import state as state_lib

ROOT = pathlib.Path(__file__).parents[2]
# What differs between two runs of the same thing.
_CLOCK = ("tokens_per_second",)


@dataclasses.dataclass(frozen=True)
class Uninterrupted:
  """Where the run without interruption lies, and how it ended."""

  folder: pathlib.Path
  workdir: pathlib.Path
  digest: str


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Uninterrupted:
  root = tmp_path_factory.mktemp("whole")
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  folder = tiny_run.write(root / "rollouts", rollouts)
  state = tiny_run.train(folder, root / "run")
  return Uninterrupted(folder, root / "run", tiny_run.digest(state))


def records(workdir):
  """Returns the metrics without the clock, for comparison."""
  return [
      {name: value for name, value in record.items() if name not in _CLOCK}
      for record in metrics.read(workdir / "metrics.jsonl")
  ]


def interrupt(monkeypatch, folder, workdir, updates):
  """Trains until an exception in the place of an update."""
  done = [0]
  update = loop._update

  def update_or_die(*args):
    if done[0] == updates:
      raise KeyboardInterrupt
    done[0] += 1
    return update(*args)

  with monkeypatch.context() as patch:
    patch.setattr(loop, "_update", update_or_die)
    with pytest.raises(KeyboardInterrupt):
      tiny_run.train(folder, workdir)


def test_the_run_is_what_the_tests_need(whole):
  """8 updates in 2 batches of 2 epochs; every update moves every array."""
  updates = [r for r in records(whole.workdir) if r["kind"] == "update"]
  assert [r["step"] for r in updates] == list(range(1, 9))
  assert [r["updates"] for r in updates] == list(range(1, 9))
  places = [(r["batch"], r["epoch"], r["minibatch"]) for r in updates]
  assert places == [
      (b, e, m) for b in range(2) for e in range(2) for m in range(2)
  ]
  # The policy that is trained leaves the one that sampled.
  deviation = [r["ratio_deviation"] for r in updates]
  assert deviation[0] < 1e-5 and min(deviation[1:4]) > 1e-2
  found = checkpoints.complete_steps(whole.workdir / "checkpoints")
  assert list(found) == [6, 8]
  restored = [
      checkpoints.restore(
          path,
          tiny_run.POLICY.shapes,
          optimizer.build(tiny_run.SETTINGS),
      ).state
      for path in found.values()
  ]
  start = tiny_run.params()
  for before, after in [(start, restored[0].params)] + [
      (restored[0].params, restored[1].params)
  ]:
    for left, right in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
      assert np.abs(np.asarray(left) - np.asarray(right)).max() > 1e-3
  # The number of a checkpoint is the optimizer's own count.
  counts = [int(state.opt_state[1][0].count) for state in restored]
  assert counts == [6, 8]
  assert restored[1].position == state_lib.Position(
      1, round_updates=8, batch_updates=8
  )


def test_a_finished_round_is_not_trained_again(whole):
  state = tiny_run.train(whole.folder, whole.workdir)
  assert tiny_run.digest(state) == whole.digest


@pytest.mark.parametrize("updates", [0, 2, 5, 7])
def test_an_exception_changes_nothing(whole, tmp_path, monkeypatch, updates):
  """Before the first checkpoint, in epochs' middles, and after a batch."""
  interrupt(monkeypatch, whole.folder, tmp_path, updates)
  state = tiny_run.train(whole.folder, tmp_path)
  assert tiny_run.digest(state) == whole.digest
  assert records(tmp_path) == records(whole.workdir)
  name = "feedback/round_0000.json"
  assert (tmp_path / name).read_text() == (whole.workdir / name).read_text()


def test_three_sigkills_change_nothing(whole, tmp_path):
  """As a prepared file and a checkpoint get their names, and in an update."""
  for moment, count in (("publish", 2), ("save", 1), ("update", 2)):
    done = subprocess.run(
        [sys.executable, tiny_run.__file__, whole.folder, tmp_path]
        + [moment, str(count)],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == -9, done.stderr[-2000:]
  assert list(checkpoints.complete_steps(tmp_path / "checkpoints")) == [3]
  assert list(tmp_path.glob("checkpoints/step_6.orbax-checkpoint-tmp*"))
  state = tiny_run.train(whole.folder, tmp_path)
  assert tiny_run.digest(state) == whole.digest
  assert records(tmp_path) == records(whole.workdir)


def test_a_sigterm_saves_the_update_and_changes_nothing(whole, tmp_path):
  """In the second update, and in the last one of the round."""
  for count, saved in ((2, [2]), (6, [6, 8])):
    done = subprocess.run(
        [sys.executable, tiny_run.__file__, whole.folder, tmp_path]
        + ["terminate", str(count)],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == preemption.EXIT_CODE, done.stderr[-2000:]
    assert "SIGTERM" in done.stderr and "digest" not in done.stdout
    found = checkpoints.complete_steps(tmp_path / "checkpoints")
    assert list(found) == saved
  state = tiny_run.train(whole.folder, tmp_path)
  assert tiny_run.digest(state) == whole.digest
  assert records(tmp_path) == records(whole.workdir)


def test_a_forgotten_part_of_the_state_would_show(
    whole, tmp_path, monkeypatch
):
  """Each part of a checkpoint matters: without it the run ends elsewhere."""
  killed = tmp_path / "killed"
  interrupt(monkeypatch, whole.folder, killed, 3)
  transform = optimizer.build(tiny_run.SETTINGS)
  path = checkpoints.latest(killed / "checkpoints")
  assert path.name == "step_3"
  fresh = state_lib.create(tiny_run.params(), transform, tiny_run.LINEAGE)
  right = state_lib.Position(epoch=1, minibatch=1)
  for name, forgotten in (
      ("nothing", {}),
      ("params", {"params": fresh.params}),
      ("optimizer", {"opt_state": fresh.opt_state}),
      ("order", {"position": dataclasses.replace(right, minibatch=0)}),
  ):
    state = checkpoints.restore(
        path, tiny_run.POLICY.shapes, transform
    ).state
    assert state.position == right
    state = dataclasses.replace(state, **forgotten)
    monkeypatch.setattr(tiny_run, "start", lambda *unused, s=state: s)
    workdir = tmp_path / name
    shutil.copytree(killed, workdir)
    ended = tiny_run.train(whole.folder, workdir)
    same = tiny_run.digest(ended) == whole.digest
    assert same == (not forgotten), name


def test_what_was_prepared_is_read_and_never_made_again(
    whole, tmp_path, monkeypatch
):
  interrupt(monkeypatch, whole.folder, tmp_path, 3)
  path = prepare.path_of(tmp_path, state_lib.Position())
  stored = path.read_bytes()
  made = []
  compute = prepare.compute
  monkeypatch.setattr(
      prepare,
      "compute",
      lambda *args: made.append(args[-1].number) or compute(*args),
  )
  state = tiny_run.train(whole.folder, tmp_path)
  assert tiny_run.digest(state) == whole.digest
  assert made == [1]  # the second batch alone
  assert path.read_bytes() == stored


def test_a_lost_or_foreign_file_is_refused(whole, tmp_path, monkeypatch):
  interrupt(monkeypatch, whole.folder, tmp_path, 4)
  with pytest.raises(ValueError, match="prepared with another objective"):
    other = dataclasses.replace(tiny_run.SPEC, name="other")
    tiny_run.train(whole.folder, tmp_path, spec=other)
  prepare.path_of(tmp_path, state_lib.Position()).unlink()
  with pytest.raises(ValueError, match="batch_0000.npz: missing, .* restore"):
    tiny_run.train(whole.folder, tmp_path)
