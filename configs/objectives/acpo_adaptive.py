"""Adaptive-clip PO: bounds widen where ratios of like tokens spread.

The spread is measured over the mini-batch in a pass before the update, in bins
of the tokens' probability. More epochs make the ratios spread.

Command: python -m jaxrl_llm run --config=configs/objectives/acpo_adaptive.py
  --workdir=runs/acpo_adaptive
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 once a ratio leaves bounds that are
  0.2 wide at least.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under adaptive clipping, four epochs."""
  config = tiny.get_config()
  config.objective.name = "acpo_adaptive"
  config.train.epochs = 4
  return config
