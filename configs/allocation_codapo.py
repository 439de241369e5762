"""CoDaPO: questions weighed by their value, the best ones posed again.

Command: python -m jaxrl_llm run --config=configs/allocation_codapo.py
  --workdir=runs/allocation_codapo
Hardware: one CPU core.
Expect: every part of configs/tiny.py. Every other round poses
  allocation.top_k prompts of the round before.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job with both halves of the paper."""
  config = tiny.get_config()
  config.allocation.name = "codapo"
  config.curation.name = "codapo"
  config.objective.name = "ppo"
  return config
