"""Checks on four devices; sharding_test.py runs it in its own process.

  python sharded_run.py FOLDER

The gradient over data=2,fsdp=2 is that of one device; a run that is sharded,
saved and restored ends with the same bits as one that was not interrupted.
"""

import dataclasses
import pathlib
import sys

import jax
import numpy as np
import tiny_run

from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import loop
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib

SETTINGS = dataclasses.replace(
    tiny_run.SETTINGS, rows_per_microbatch=4, checkpoint_every=3
)


def totals(mesh, rollouts):
  trainer = trainer_lib.build(
      tiny_run.POLICY,
      tiny_run.SPEC,
      SETTINGS,
      mesh=mesh,
      seed=0,
      reference_params=None,
  )
  state = state_lib.create(
      tiny_run.params(1), optimizer.build(SETTINGS), tiny_run.LINEAGE
  )
  state = state_lib.place(
      state, tiny_run.POLICY, optimizer.build(SETTINGS), mesh
  )
  spread = np.random.default_rng(0).normal(size=len(rollouts))
  terms = {
      "advantages": list(spread.astype(np.float32)),
      "proximal_logprobs": [r.behavior_logprobs for r in rollouts],
  }
  with jax.set_mesh(mesh):
    built = minibatch.build(trainer, rollouts, terms)
    return minibatch.accumulate(trainer, state.params, built, 0), state


def check_gradient(mesh, rollouts):
  got, state = totals(mesh, rollouts)
  want, _ = totals(tiny_run.mesh(), rollouts)
  for tree in (state.params, state.opt_state[1][0].mu, got.grads):
    assert not tree["embedding"].sharding.is_fully_replicated
  np.testing.assert_allclose(got.loss, want.loss, rtol=1e-5)
  for left, right in zip(
      jax.tree.leaves(got.grads), jax.tree.leaves(want.grads)
  ):
    left, right = np.asarray(left), np.asarray(right)
    gap = np.linalg.norm(left - right) / np.linalg.norm(right)
    assert gap <= 1e-5, gap


def check_resume(mesh, folder, root):
  train = lambda workdir: tiny_run.train(
      folder, workdir, settings=SETTINGS, mesh=mesh
  )
  want = tiny_run.digest(train(root / "whole"))
  update, calls = loop._update, []

  def die_late(*args):
    calls.append(1)
    if len(calls) == 6:
      raise KeyboardInterrupt
    return update(*args)

  loop._update = die_late
  try:
    train(root / "killed")
    raise AssertionError("expected an interruption")
  except KeyboardInterrupt:
    loop._update = update
  assert list(checkpoints.complete_steps(root / "killed/checkpoints")) == [3]
  assert tiny_run.digest(train(root / "killed")) == want


def main(root: pathlib.Path) -> None:
  assert jax.device_count() == 4
  mesh = tiny_run.mesh("data=2,fsdp=2")
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  check_gradient(mesh, rollouts)
  folder = tiny_run.write(root / "rollouts", rollouts)
  check_resume(mesh, folder, root)


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
