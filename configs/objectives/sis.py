"""SIS: a rejection test makes most tokens on-policy; PPO clips the others.

The envelope runs over the top 100 ids of the proximal policy, which the trainer
recomputes. The paper's runs carry a small KL to the start policy. SIS goes over
other hosts as well: objective.name=gspo with objective.selection=sis.

Command: python -m jaxrl_llm run --config=configs/objectives/sis.py
  --workdir=runs/sis
Hardware: one CPU core.
Expect: `exempt` in metrics.jsonl, the share of accepted tokens, is 1 at the
  first update of a batch and below 1 after it.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under SIS over GRPO."""
  config = tiny.get_config()
  config.objective.name = "sis"
  config.objective.kl_coefficient = 1e-3
  return config
