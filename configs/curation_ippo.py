"""I-PPO: episodes that would raise the validation loss are dropped.

Command: python -m jaxrl_llm run --config=configs/curation_ippo.py
  --workdir=runs/curation_ippo
Hardware: one CPU core.
Expect: `influence/positive_share` and `curation/survivor_share` in
  metrics.jsonl. The validation set is the rollout batch itself; to imitate
  other records, set curation.validation=sft and curation.validation_rollouts
  to their folders.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under PPO with a critic and the filter."""
  config = tiny.get_config()
  config.objective.name = "ppo"
  config.objective.advantage = "gae"
  config.objective.lambda_actor = 0.95
  config.curation.name = "ippo"
  config.curation.validation = "batch"
  return config
