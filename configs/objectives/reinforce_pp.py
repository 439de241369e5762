"""REINFORCE++: rewards whitened over the batch; KL in the reward.

No group is needed, so a prompt gets one response. Each token's reward is
lowered by its KL to the start policy, and its advantage is the reward to go.

Command: python -m jaxrl_llm run --config=configs/objectives/reinforce_pp.py
  --workdir=runs/reinforce_pp
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 from the second update of a batch
  on; no group is dropped for equal rewards.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under REINFORCE++, one response a problem."""
  config = tiny.get_config()
  config.objective.name = "reinforce_pp"
  config.objective.kl_reward_coefficient = 0.01
  config.generation.prompts_per_round = 256
  config.generation.samples_per_prompt = 1
  config.train.groups_per_minibatch = 64
  return config
