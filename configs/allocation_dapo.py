"""DAPO poses as many prompts as it takes to have enough that teach.

Command: python -m jaxrl_llm run --config=configs/allocation_dapo.py
  --workdir=runs/allocation_dapo
Hardware: one CPU core.
Expect: every part of configs/tiny.py. A round poses the more prompts,
  the fewer groups of the last had unequal rewards.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job with the objective of the same paper."""
  config = tiny.get_config()
  config.allocation.name = "dapo"
  config.objective.name = "dapo"
  config.generation.prompts_per_round = 8
  return config
