"""Knapsack RL gives the prompts that are solved at times the most rollouts.

Command: python -m jaxrl_llm run --config=configs/allocation_knapsack.py
  --workdir=runs/allocation_knapsack
Hardware: one CPU core.
Expect: every part of configs/tiny.py. From the second pass over
  the problems on, groups in allocation/ differ in size.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job with few prompts, so that their rates are known."""
  config = tiny.get_config()
  config.allocation.name = "knapsack"
  config.prompts.count = 64
  config.prompts.eval_count = 8
  return config
