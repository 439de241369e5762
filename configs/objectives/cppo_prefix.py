"""CPPO: a budget of divergence that a response's prefix spends.

The paper's divergence runs over the behaviour policy's top 20 ids, so the
sampler keeps them in the shards. Ratios are against the behaviour policy.

Command: python -m jaxrl_llm run --config=configs/objectives/cppo_prefix.py
  --workdir=runs/cppo_prefix
Hardware: one CPU core.
Expect: `budget_max` in metrics.jsonl, the largest share of a budget in use,
  is above 0, and `clip` from the second update of a batch on.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under CPPO with the top-K divergence."""
  config = tiny.get_config()
  config.objective.name = "cppo_prefix"
  config.objective.divergence = "topk_tv"
  config.sampling.record_topk = 20
  return config
