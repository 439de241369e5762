"""DPO: of two responses to a prompt, the one with the higher reward.

The loss compares log π − log reference of the two; the reference is the
policy that the run starts from (train.reference). A group whose rewards are
all equal has no pair and is left out.

Command: python -m jaxrl_llm run --config=configs/objectives/dpo.py
  --workdir=runs/dpo
Hardware: one CPU core.
Expect: in metrics.jsonl `loss` is log 2 and `pair_margin` 0 at the first
  update; over the updates of a round `pair_margin` and `pair_accuracy` rise,
  and the next round's fresh pairs bring them down. Most groups of the first
  round are left out, for all their answers fail.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under DPO, with more prompts: most answers fail."""
  config = tiny.get_config()
  config.objective.name = "dpo"
  config.generation.prompts_per_round = 64
  return config
