"""GRPO: PPO's clip, a mean per response, a KL to the start policy.

The paper weighs the KL in the loss by 0.04; the reference is the policy that
the run starts from (train.reference).

Command: python -m jaxrl_llm run --config=configs/objectives/grpo.py
  --workdir=runs/grpo
Hardware: one CPU core.
Expect: `loss/kl` in metrics.jsonl is 0 at the first update and grows as the
  policy leaves its start; `clip` is above 0 from the second update on.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under GRPO with the paper's KL."""
  config = tiny.get_config()
  config.objective.name = "grpo"
  config.objective.kl_coefficient = 0.04
  return config
