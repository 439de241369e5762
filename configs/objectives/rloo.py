"""RLOO: the baseline of a response is the mean of the group's others.

The baseline is unbiased at any group size, so groups may be small.

Command: python -m jaxrl_llm run --config=configs/objectives/rloo.py
  --workdir=runs/rloo
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 from the second update of a batch
  on.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under RLOO, more problems and smaller groups."""
  config = tiny.get_config()
  config.objective.name = "rloo"
  config.generation.prompts_per_round = 64
  config.generation.samples_per_prompt = 4
  config.train.groups_per_minibatch = 16
  return config
