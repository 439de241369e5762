"""placement.py on one host; tests/verbs/hosts_test.py has two."""

import types

import jax
import numpy as np
import pytest

from jaxrl_llm.models import placement
from jaxrl_llm.models import sharding


@pytest.mark.parametrize(
    "sizes, local, expected",
    [
        # Heads stay split by 2, what is left of 8 chips splits the widths.
        ((4, 8, 2), 8, (1, 4, 2)),
        # Rows are what a host has left.
        ((4, 2, 1), 4, (2, 2, 1)),
        ((1, 3, 4), 4, (1, 1, 4)),
        # One device holds all.
        ((1, 2, 4), 1, (1, 1, 1)),
    ],
)
def test_a_host_keeps_the_last_axes(sizes, local, expected, monkeypatch):
  monkeypatch.setattr(jax, "local_device_count", lambda: local)
  mesh = types.SimpleNamespace(shape=dict(zip(sharding.MESH_AXES, sizes)))
  assert placement._sizes_here(mesh) == expected


def test_one_process_copies_and_gathers_nothing():
  mesh = sharding.make_mesh("data=1")
  tree = {"a": np.arange(6.0), "b": {"c": np.ones(2)}}
  placed = placement.put(tree, sharding.replicated(mesh))
  assert placed["b"]["c"].sharding == sharding.replicated(mesh)
  np.testing.assert_array_equal(placement.whole(placed["a"]), tree["a"])
  assert placement.of_this_host(mesh) is mesh
  assert placement.copy_here(placed, None, mesh) is placed
