"""CISPO: the ratio is a truncated weight, so no token loses its gradient.

More passes than usual over a batch: what would be cut elsewhere still counts
here, with a weight of at most objective.weight_max.

Command: python -m jaxrl_llm run --config=configs/objectives/cispo.py
  --workdir=runs/cispo
Hardware: one CPU core.
Expect: `ratio_after_max` in metrics.jsonl stays at 1.2 while `ratio_max` grows;
  `clip` is 0 throughout.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under CISPO, four epochs a batch."""
  config = tiny.get_config()
  config.objective.name = "cispo"
  config.train.epochs = 4
  return config
