"""Checks on eight devices; sharding_test.py runs it in its own process.

  python sharded_scores.py FOLDER

Influence scores over data=8 and data=2,fsdp=4 are those of one device, and
the inner products of every episode's own backward pass on one device, whether
rows are packed or hold one record each.
"""

import dataclasses
import pathlib
import sys
from unittest import mock

import jax
import numpy as np
import scored
import tiny_run

from jaxrl_llm.curation import influence
from jaxrl_llm.data import packing
from jaxrl_llm.training import attribution
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import state as state_lib

SETTINGS = dataclasses.replace(scored.SETTINGS, rows_per_microbatch=8)
OBJECTIVES = ("ppo", "ctpo", "cppo_prefix")
MESHES = ("data=8", "data=2,fsdp=4")


def setting(folder, name, mesh):
  """The trainer on a mesh, at a policy that has left the one that sampled."""
  overrides = {"name": name, "correction": "none"}
  trainer, state, *rest = scored.setting(
      folder, overrides, influence.Influence(), SETTINGS, mesh
  )
  transform = optimizer.build(SETTINGS)
  state = state_lib.place(
      scored.moved(state), tiny_run.POLICY, transform, mesh
  )
  return trainer, state, *rest


def scores(given):
  """Scores of the episodes, their rows packed, then a row per record."""
  with jax.set_mesh(given[0].mesh):
    packed = attribution.scores(*given).episodes
    alone = lambda lengths, *_: [[n] for n in range(len(lengths))]
    with mock.patch.object(packing, "pack", alone):
      return packed, attribution.scores(*given).episodes


def check(folder, name):
  single = setting(folder, name, tiny_run.mesh())
  want = scored.reverse(*single, attribution.direction_of(*single))
  near = dict(rtol=1e-5, atol=1e-5 * np.abs(want).max(), err_msg=name)
  alone = scores(single)
  for found in alone:
    np.testing.assert_allclose(found, want, **near)
  for text in MESHES:
    given = setting(folder, name, tiny_run.mesh(text))
    embedding = given[1].params["embedding"].sharding
    assert len(embedding.device_set) == 8
    assert embedding.is_fully_replicated == (text == "data=8")
    for found, single_found in zip(scores(given), alone, strict=True):
      np.testing.assert_allclose(found, want, **near)
      np.testing.assert_allclose(found, single_found, **near)


def main(root: pathlib.Path) -> None:
  assert jax.device_count() == 8
  folder = scored.write(root)
  for name in OBJECTIVES:
    check(folder, name)
  print(f"{len(OBJECTIVES)} objectives")


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
