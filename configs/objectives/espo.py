"""ESPO: no clip; the epochs end once ratios have strayed far enough.

The number of epochs is an upper limit: they end before the first update whose
mean |ratio − 1| exceeds objective.stop_deviation.

Command: python -m jaxrl_llm run --config=configs/objectives/espo.py
  --workdir=runs/espo
Hardware: one CPU core.
Expect: fewer updates a round than the epochs allow, each with a
  `ratio_deviation` in metrics.jsonl of at most 0.25.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under ESPO, up to eight epochs."""
  config = tiny.get_config()
  config.objective.name = "espo"
  config.train.epochs = 8
  return config
