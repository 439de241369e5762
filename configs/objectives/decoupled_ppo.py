"""Decoupled PPO: clips against a recent policy, weighs by what drew a token.

A round is cut into four rollout batches, so all but the first are stale: the
proximal policy is recomputed for each, the behaviour policy stays the round's.

Command: python -m jaxrl_llm run --config=configs/objectives/decoupled_ppo.py
  --workdir=runs/decoupled_ppo
Hardware: one CPU core.
Expect: `correction/mean` in metrics.jsonl, the weight proximal/behavior, is 1
  in the first batch of a round and differs from 1 in the others.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under decoupled PPO on stale batches."""
  config = tiny.get_config()
  config.objective.name = "decoupled_ppo"
  config.train.groups_per_batch = 4
  config.train.groups_per_minibatch = 2
  return config
