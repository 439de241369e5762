"""What hosts tell each other of records comes whole."""

import jax
import numpy as np
import pytest
import tiny_run

from jaxrl_llm import hosts
from jaxrl_llm.training import recorded

ROLLOUTS = tiny_run.make_rollouts(groups=2)


def describe(rollout):
  return {
      "mask": rollout.response_mask,
      "odd": np.arange(rollout.record_id % 2, dtype=np.float64),
  }


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_parts_make_up_the_whole(monkeypatch, count):
  """Each of some processes describes its part; one of five has nothing."""
  positions = [3, 0, 1, 2]
  alone = recorded.gather(ROLLOUTS, positions, describe)
  monkeypatch.setattr(jax, "process_count", lambda: count)
  packed = []
  for index in range(count):
    monkeypatch.setattr(jax, "process_index", lambda index=index: index)
    own = [describe(ROLLOUTS[positions[n]]) for n in hosts.share(4)]
    packed.append(recorded._pack(recorded._by_name(own)))
  monkeypatch.setattr(hosts, "together", lambda action: action())
  monkeypatch.setattr(hosts, "exchange_bytes", lambda own: packed)
  found = recorded.gather(ROLLOUTS, positions, describe)
  assert found.keys() == alone.keys() == {"mask", "odd"}
  for name, values in alone.items():
    assert len(found[name]) == len(values) == 4
    for ours, theirs in zip(found[name], values):
      assert ours.dtype == theirs.dtype
      np.testing.assert_array_equal(ours, theirs)


def test_all_stop_with_the_words_of_the_first(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  monkeypatch.setattr(hosts, "exchange", lambda own: ["", "second", own])

  def fail():
    raise OSError("third")

  for action in (fail, lambda: 7):
    with pytest.raises(ValueError, match="^second$"):
      hosts.together(action)
  monkeypatch.setattr(hosts, "exchange", lambda own: [own, "", ""])
  assert hosts.together(lambda: 7) == 7
  with pytest.raises(ValueError, match="^third$"):
    hosts.together(fail)
