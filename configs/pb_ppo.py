"""PPO whose clip bound a bandit chooses anew each round (arXiv 2312.07624).

Command: python -m jaxrl_llm run --config=configs/pb_ppo.py
  --workdir=runs/pb_ppo
Hardware: one CPU core.
Expect: a run in a few minutes; controls/ holds the bound of each round, the
  first six of them 0.02 to 0.5 in turn.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job with grouped PPO and UCB1 over six bounds."""
  config = tiny.get_config()
  config.objective.name = "ppo"
  config.train.clip_bandit = "ucb1"
  return config
