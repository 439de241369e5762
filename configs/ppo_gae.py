"""PPO with a critic and generalized advantage estimation.

Command: python -m jaxrl_llm run --config=configs/ppo_gae.py
  --workdir=runs/ppo_gae
Hardware: one CPU core.
Expect: `critic/explained_variance` in metrics.jsonl grows over the rounds.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under PPO with a value network."""
  config = tiny.get_config()
  config.objective.name = "ppo"
  config.objective.advantage = "gae"
  config.objective.lambda_actor = 0.95
  return config
