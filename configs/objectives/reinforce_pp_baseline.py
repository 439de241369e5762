"""REINFORCE++ with a baseline: group means off, then whitened over all.

The std is that of the whole batch, so easy and hard groups keep their scale.

Command: python -m jaxrl_llm run
  --config=configs/objectives/reinforce_pp_baseline.py
  --workdir=runs/reinforce_pp_baseline
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 from the second update of a batch
  on.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under REINFORCE++ with group means."""
  config = tiny.get_config()
  config.objective.name = "reinforce_pp_baseline"
  return config
