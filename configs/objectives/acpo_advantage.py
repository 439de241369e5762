"""Advantage-clipped PO: cuts where ratio times advantage is too large.

The bound holds in every direction and at ratio 1 too. With groups of 16 the
lone right answer has A = 3.75 and the lone wrong one −3.75, beyond the paper's
bound of 3.

Command: python -m jaxrl_llm run --config=configs/objectives/acpo_advantage.py
  --workdir=runs/acpo_advantage
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 from the first update on where a
  group has one answer unlike the others.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under advantage clipping."""
  config = tiny.get_config()
  config.objective.name = "acpo_advantage"
  return config
