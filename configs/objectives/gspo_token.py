"""GSPO in its token form: the response's ratio, each token's gradient.

Equal to GSPO as long as a response has one advantage; a discount or a KL in
the reward would give its tokens their own.

Command: python -m jaxrl_llm run --config=configs/objectives/gspo_token.py
  --workdir=runs/gspo_token
Hardware: one CPU core.
Expect: as for gspo, `clip` in metrics.jsonl jumps after the first update.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under token-level GSPO."""
  config = tiny.get_config()
  config.objective.name = "gspo_token"
  return config
