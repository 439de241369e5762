"""What generating starts from is what training starts from, less optimizers."""

import dataclasses
import pathlib

import jax
import numpy as np

from jaxrl_llm.training import checkpoints
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import train

ROOT = pathlib.Path(__file__).parents[2]


def assert_same(lean, full):
  for field in ("counters", "position", "lineage", "allocation"):
    assert getattr(lean, field) == getattr(full, field), field
  for left, right in zip(
      jax.tree.leaves(lean.params), jax.tree.leaves(full.params), strict=True
  ):
    np.testing.assert_array_equal(left, right)
    assert left.sharding == right.sharding
  assert lean.opt_state is None and lean.critic is None


def test_sampling_starts_without_optimizer_critic_or_copy(tmp_path):
  # An objective with a critic.
  config, _ = flags.parse(
      "generate", [f"--config={ROOT / 'configs/ppo_gae.py'}"]
  )
  model = parts.model(config, parts.tokenizer(config))
  full = train.start(config, model, tmp_path)
  assert full.critic is not None
  lean = train.start_to_sample(config, model, tmp_path)
  assert_same(lean, full)
  assert lean.params is model.start_params

  moved = dataclasses.replace(
      full,
      params=jax.tree.map(lambda leaf: leaf + 1, full.params),
      position=full.position.next_round(0),
      allocation={"seen": 1},
  )
  checkpoints.save(
      folders.checkpoints(tmp_path), moved, kept=1, config={}
  )
  assert_same(train.start_to_sample(config, model, tmp_path), moved)
