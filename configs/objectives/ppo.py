"""PPO without a critic: the clipped surrogate on group advantages.

The clip bounds what the later updates on a rollout batch may do to a token.

Command: python -m jaxrl_llm run --config=configs/objectives/ppo.py
  --workdir=runs/ppo
Hardware: one CPU core.
Expect: from the second update of a batch on, `clip` in metrics.jsonl is above
  0: tokens whose ratio left [0.8, 1.2] the way their advantage pushes.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under PPO."""
  config = tiny.get_config()
  config.objective.name = "ppo"
  return config
