"""DVPO: the advantage is what a pretrained, frozen critic says of a token.

Command: python -m jaxrl_llm run --config=configs/objectives/dvpo.py
  --workdir=runs/dvpo
Hardware: one CPU core.
Expect: the critic learns in rounds 0 and 1 and never again; the policy from
  round 2 on.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under DVPO, two rounds of pretraining first."""
  config = tiny.get_config()
  config.objective.name = "dvpo"
  config.critic.pretrain_rounds = 2
  config.critic.epochs = 4
  config.run.rounds = 4
  return config
