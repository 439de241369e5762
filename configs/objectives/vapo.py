"""VAPO: λ grows with the response, and rewarded responses are imitated.

Command: python -m jaxrl_llm run --config=configs/objectives/vapo.py
  --workdir=runs/vapo
Hardware: one CPU core.
Expect: `loss/positive` in metrics.jsonl, 0.1 × the NLL of rewarded responses,
  from round 1 on; round 0 trains the critic alone.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under VAPO, one round of pretraining first."""
  config = tiny.get_config()
  config.objective.name = "vapo"
  config.critic.pretrain_rounds = 1
  config.run.rounds = 3
  return config
