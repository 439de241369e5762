"""T-PPO: responses are trained on while they are unfinished (EGAE).

A round draws at most generation.window tokens of a response; the next round
goes on with what did not end.

Command: python -m jaxrl_llm run --config=configs/objectives/tppo.py
  --workdir=runs/tppo
Hardware: one CPU core.
Expect: `unfinished` in metrics.jsonl from round 0 on and `continued` from
  round 1 on; the critic learns from responses that are finished.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under T-PPO, two rounds of pretraining first."""
  config = tiny.get_config()
  config.objective.name = "tppo"
  config.sampling.max_new_tokens = 8
  config.generation.window = 4
  config.critic.pretrain_rounds = 2
  config.run.rounds = 5
  return config
