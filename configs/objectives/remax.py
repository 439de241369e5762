"""ReMax: the baseline is the reward of the prompt's greedy response.

Generation adds one greedy response per prompt, which is never trained on, so
a prompt needs one sample only.

Command: python -m jaxrl_llm run --config=configs/objectives/remax.py
  --workdir=runs/remax
Hardware: one CPU core.
Expect: a round's shards hold 512 records for 256 prompts, and
  `dropped/baseline` counts 256 of them.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under ReMax, one response a problem."""
  config = tiny.get_config()
  config.objective.name = "remax"
  config.generation.prompts_per_round = 256
  config.generation.samples_per_prompt = 1
  config.train.groups_per_minibatch = 64
  return config
