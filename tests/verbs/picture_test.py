"""The picture of a run that recorded little."""

import json

import pytest

from jaxrl_llm.verbs import picture


@pytest.mark.parametrize("rewards", [[0.5], [None, 0.5], [None], [0.2, 0.4]])
def test_few_rewards_are_drawn(tmp_path, rewards):
  """One round, or one with a verdict; nothing with none."""
  update = {"kind": "update", "ratio/mean": 1.0, "ratio_max": 1.5, "clip": 0.1}
  records = [
      {"step": step, **record}
      for step, reward in enumerate(rewards)
      for record in ({"kind": "batch", "reward": reward}, update)
  ]
  path = tmp_path / "metrics.jsonl"
  path.write_text("".join(json.dumps(record) + "\n" for record in records))
  drawn = picture.draw(path, tmp_path / "picture.png")
  assert drawn.stat().st_size > 10_000
