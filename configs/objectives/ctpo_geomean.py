"""CTPO on the running mean of log-ratios, in bounds that shrink.

Command: python -m jaxrl_llm run --config=configs/objectives/ctpo_geomean.py
  --workdir=runs/ctpo_geomean
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 from the second update of a batch
  on.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under geometric-mean CTPO."""
  config = tiny.get_config()
  config.objective.name = "ctpo_geomean"
  return config
