"""The laboratory: objectives beside each other on shards of a tiny model.

Command: python -m jaxrl_llm run --config=configs/lab.py --workdir=runs/lab
  python -m jaxrl_llm replay --config=configs/lab.py --workdir=runs/replay
  --shards=runs/lab/rollouts/round_00007
  --objectives=grpo,gspo,ctpo,cppo_prefix,sis
  python -m jaxrl_llm staleness --config=configs/lab.py
  --workdir=runs/staleness
Hardware: 2 CPU cores.
Expect: minutes for each. Responses have two tokens, so that all of them can be
  listed, and the table of `replay` shows the exact policy gradient as well.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job with two tokens of response."""
  config = tiny.get_config()
  config.model.remat = "none"
  config.sampling.max_new_tokens = 2
  config.sampling.record_topk = 100  # Of sis.
  config.generation.prompts_per_round = 32
  config.train.groups_per_minibatch = 2
  config.lab.objectives = "grpo,gspo,ctpo,cppo_prefix,sis"
  config.lab.correction = "bypass"
  return config
