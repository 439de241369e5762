"""CERO decides which prompts of the tiny job are worth another visit.

Command: python -m jaxrl_llm run --config=configs/allocation_cero.py
  --workdir=runs/allocation_cero
Hardware: one CPU core.
Expect: every part of configs/tiny.py. Prompts are served in groups of
  four or eight, and allocation/ shows who was served again.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job with few prompts, so that they come again."""
  config = tiny.get_config()
  config.allocation.name = "cero"
  config.prompts.count = 128
  config.prompts.eval_count = 16
  config.generation.samples_per_prompt = 8
  config.generation.prompts_per_round = 32
  config.run.rounds = 16
  return config
