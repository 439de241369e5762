"""DPPO: completions of small advantage are dropped at random, without bias.

Command: python -m jaxrl_llm run --config=configs/curation_dppo_pruning.py
  --workdir=runs/curation_dppo_pruning
Hardware: one CPU core.
Expect: `curation/survivor_share` below 1 in metrics.jsonl; the survivors
  weigh more, so that the expected gradient is that of all.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under GRPO with pruning at random."""
  config = tiny.get_config()
  config.objective.name = "grpo"
  config.curation.name = "dppo_pruning"
  return config
