"""PS-PPO: each response is cut at random, without bias.

Command: python -m jaxrl_llm run --config=configs/curation_ps_ppo.py
  --workdir=runs/curation_ps_ppo
Hardware: one CPU core.
Expect: `curation/response_tokens_kept` below 1 in metrics.jsonl.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under PPO on sampled prefixes."""
  config = tiny.get_config()
  config.objective.name = "ppo"
  config.curation.name = "ps_ppo"
  return config
