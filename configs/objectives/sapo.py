"""SAPO: a sigmoid in place of the clip, steeper for negative advantages.

Command: python -m jaxrl_llm run --config=configs/objectives/sapo.py
  --workdir=runs/sapo
Hardware: one CPU core.
Expect: `gate` in metrics.jsonl, the factor that the sigmoid leaves of a
  gradient, falls below 1 as ratios leave 1; `clip` is 0 throughout.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under SAPO."""
  config = tiny.get_config()
  config.objective.name = "sapo"
  return config
