"""Dr. GRPO: no division by the group's std, nor by a response's length.

A response's tokens are summed and divided by a constant, the response limit,
so that long wrong answers are not pushed less than short ones.

Command: python -m jaxrl_llm run --config=configs/objectives/dr_grpo.py
  --workdir=runs/dr_grpo
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 from the second update of a batch
  on; the loss of a response grows with its length.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under Dr. GRPO."""
  config = tiny.get_config()
  config.objective.name = "dr_grpo"
  config.objective.horizon = float(config.sampling.max_new_tokens)
  return config
