"""DPPO prunes prompts by their history and completions by their advantage.

Command: python -m jaxrl_llm run --config=configs/allocation_dppo_pruning.py
  --workdir=runs/allocation_dppo_pruning
Hardware: one CPU core.
Expect: every part of configs/tiny.py. Once prompts come again, rounds pose
  fewer of them, and what stays of the pruned kind weighs twice as much.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job, with few prompts, pruned at both levels."""
  config = tiny.get_config()
  config.allocation.name = "dppo_pruning"
  config.curation.name = "dppo_pruning"
  config.objective.name = "grpo"
  config.prompts.count = 64
  return config
