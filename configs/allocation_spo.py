"""SPO draws the prompts whose success is the least certain.

Command: python -m jaxrl_llm run --config=configs/allocation_spo.py
  --workdir=runs/allocation_spo
Hardware: one CPU core.
Expect: every part of configs/tiny.py. Prompts are drawn at random, with
  weights that follow what was solved.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job with few prompts, so that they come again."""
  config = tiny.get_config()
  config.allocation.name = "spo"
  config.prompts.count = 64
  config.prompts.eval_count = 8
  return config
