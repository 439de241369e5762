"""REINFORCE weighted by the truncated ratio of live to behaviour policy.

Nothing is recomputed before the first update, so staleness costs nothing: a
round is cut into four rollout batches and all but the first are stale.

Command: python -m jaxrl_llm run --config=configs/objectives/bypass_reinforce.py
  --workdir=runs/bypass_reinforce
Hardware: one CPU core.
Expect: `correction/mean` in metrics.jsonl is the mean weight, truncated at 2;
  `clip` is 0 throughout.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under weighted REINFORCE on stale batches."""
  config = tiny.get_config()
  config.objective.name = "bypass_reinforce"
  config.train.groups_per_batch = 4
  config.train.groups_per_minibatch = 2
  return config
