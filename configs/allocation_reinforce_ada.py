"""Reinforce-Ada samples a prompt until it has right and wrong responses.

Command: python -m jaxrl_llm run --config=configs/allocation_reinforce_ada.py
  --workdir=runs/allocation_reinforce_ada
Hardware: one CPU core.
Expect: every part of configs/tiny.py. Prompts without signal come
  again in the next round, four times at most.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job with the paper's down-sampling and baseline."""
  config = tiny.get_config()
  config.allocation.name = "reinforce_ada"
  config.generation.samples_per_prompt = 8
  config.objective.name = "dr_grpo"
  return config
