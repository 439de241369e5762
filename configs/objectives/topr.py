"""TOPR: full weight for good responses, a tapered one for bad.

Bad means below 0. The rewards of this job are 0 and 1, under which nothing is
bad and only right answers teach; so the signal is reward minus group mean.

Command: python -m jaxrl_llm run --config=configs/objectives/topr.py
  --workdir=runs/topr
Hardware: one CPU core.
Expect: `ratio_after_max` in metrics.jsonl never exceeds 1, whatever
  `ratio_max` is, and `ratio_after/mean` falls below 1 after an update.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under TOPR, wrong answers below 0."""
  config = tiny.get_config()
  config.objective.name = "topr"
  config.objective.advantage = "group_mean"
  return config
