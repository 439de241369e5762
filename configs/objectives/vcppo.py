"""VC-PPO: the critic is pretrained, and its targets have a λ of their own.

Rounds 0 and 1 train the critic alone, on the returns of a fixed policy.

Command: python -m jaxrl_llm run --config=configs/objectives/vcppo.py
  --workdir=runs/vcppo
Hardware: one CPU core.
Expect: records of kind "critic" in metrics.jsonl for every round, updates of
  the policy from round 2 on.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under VC-PPO, two rounds of pretraining first."""
  config = tiny.get_config()
  config.objective.name = "vcppo"
  config.critic.pretrain_rounds = 2
  config.run.rounds = 4
  return config
