"""DPPO: drops tokens whose distribution moved too far, not whose ratio did.

The paper's divergence runs over the behaviour policy's top 20 ids, so the
sampler keeps them in the shards. Ratios are against the behaviour policy.

Command: python -m jaxrl_llm run --config=configs/objectives/dppo_divergence.py
  --workdir=runs/dppo_divergence
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 once the total variation of a token
  passes 0.15.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under DPPO with the top-K divergence."""
  config = tiny.get_config()
  config.objective.name = "dppo_divergence"
  config.objective.divergence = "topk_tv"
  config.sampling.record_topk = 20
  return config
