"""Checks on eight devices; sharding_test.py runs it in its own process.

  python sharded_run.py FOLDER

Loss and gradient over data, fsdp, tensor and all three are those of one
device; a run that is sharded, saved and restored ends with the same bits as
one that was not interrupted; and a checkpoint of eight devices goes to four,
to one and back without a bit changed.
"""

import dataclasses
import pathlib
import sys

import jax
import numpy as np
import tiny_run

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import loop
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib

SETTINGS = dataclasses.replace(
    tiny_run.SETTINGS, rows_per_microbatch=8, checkpoint_every=3
)
# Every axis of it divides by 8.
MODEL = config_lib.ModelConfig(
    vocab_size=tiny_run.VOCABULARY,
    width=16,
    layers=2,
    heads=16,
    kv_heads=8,
    head_dim=4,
    mlp_width=32,
)
POLICY = policy_lib.Policy(MODEL, "float32", "products")
MESHES = ("data=8", "fsdp=8", "tensor=8", "data=2,fsdp=2,tensor=2")


def started(mesh):
  transform = optimizer.build(SETTINGS)
  params = jax.jit(POLICY.init)(jax.random.key(1))
  state = state_lib.create(params, transform, tiny_run.LINEAGE)
  return state_lib.place(state, POLICY, transform, mesh)


def totals(mesh, rollouts):
  trainer = trainer_lib.build(
      POLICY,
      tiny_run.SPEC,
      SETTINGS,
      mesh=mesh,
      seed=0,
      reference_params=None,
  )
  state = started(mesh)
  spread = np.random.default_rng(0).normal(size=len(rollouts))
  terms = {
      "advantages": list(spread.astype(np.float32)),
      "proximal_logprobs": [r.behavior_logprobs for r in rollouts],
  }
  with jax.set_mesh(mesh):
    built = minibatch.build(trainer, rollouts, terms)
    return minibatch.accumulate(trainer, state.params, built, 0), state


def check_gradient(rollouts):
  want, _ = totals(tiny_run.mesh(), rollouts)
  for text in MESHES:
    got, state = totals(tiny_run.mesh(text), rollouts)
    for tree in (state.params, state.opt_state[1][0].mu, got.grads):
      spread = not tree["embedding"].sharding.is_fully_replicated
      assert spread == (text != "data=8"), text
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-5, err_msg=text)
    for left, right in zip(
        jax.tree.leaves(got.grads), jax.tree.leaves(want.grads)
    ):
      left, right = np.asarray(left), np.asarray(right)
      gap = np.linalg.norm(left - right) / np.linalg.norm(right)
      assert gap <= 1e-5, (text, gap)


def check_moves(root):
  """8 → 4 → 1 → 4 → 8 devices, each saved and restored on the next."""
  state = started(tiny_run.mesh(MESHES[-1]))
  shards = state.params["layers"]["gate"].addressable_shards
  assert len({shard.device for shard in shards}) == 8
  transform, want = optimizer.build(SETTINGS), tiny_run.digest(state)
  texts = ("fsdp=2,tensor=2", "data=1", "tensor=4", "fsdp=8")
  for number, text in enumerate(texts):
    path = checkpoints.save(root / str(number), state, kept=1, config={})
    at, _ = state_lib.shardings(POLICY, transform, tiny_run.mesh(text))
    like = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
        ),
        POLICY.shapes,
        at,
    )
    state = checkpoints.restore(path, like, transform).state
    for tree in (state.params, state.opt_state[1][0].mu):
      assert tree["embedding"].sharding == at["embedding"], text
    assert tiny_run.digest(state) == want, text


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
  assert jax.device_count() == 8
  rollouts = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  check_gradient(rollouts)
  check_moves(root / "moves")
  folder = tiny_run.write(root / "rollouts", rollouts)
  check_resume(tiny_run.mesh("data=2,fsdp=4"), folder, root)
  print(f"{len(MESHES)} meshes")


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
