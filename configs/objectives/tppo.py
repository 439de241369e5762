"""T-PPO: responses are trained on while they are unfinished (EGAE).

A round draws at most generation.window tokens of a response; the next round
goes on with what did not end.

Command: python -m jaxrl_llm run --config=configs/objectives/tppo.py
  --workdir=runs/tppo
Hardware: one CPU core.
Expect: responses of several policy versions; the critic learns from those
  that are finished.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under T-PPO, one round of pretraining first."""
  config = tiny.get_config()
  config.objective.name = "tppo"
  config.critic.pretrain_rounds = 1
  config.run.rounds = 3
  return config
