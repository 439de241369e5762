"""Supervised fine-tuning: the responses that earned a reward are imitated.

No ratio, no baseline: the loss is the negative log-likelihood per token of
the responses whose reward exceeds objective.imitate_above.

Command: python -m jaxrl_llm run --config=configs/objectives/sft.py
  --workdir=runs/sft
Hardware: one CPU core.
Expect: `loss` in metrics.jsonl falls over the epochs on a batch, and the
  reward rises; `dropped/ignored` counts the responses that are not imitated.
  A round whose responses all fail updates nothing and says so.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under SFT, with more prompts: most answers fail."""
  config = tiny.get_config()
  config.objective.name = "sft"
  config.generation.prompts_per_round = 64
  return config
