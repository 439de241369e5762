"""DAPO: a wider upper clip, one mean over tokens, a price on length.

Groups whose rewards are all equal are dropped (train.keep_uniform_groups), as
the paper's dynamic sampling does; it draws new ones for them, this job takes
what is left. The overlong penalty grows over the last tokens before the limit.

Command: python -m jaxrl_llm run --config=configs/objectives/dapo.py
  --workdir=runs/dapo
Hardware: one CPU core.
Expect: `dropped/uniform` counts the dropped records of a round, and
  `clip/high_positive` tokens above 1.28 rather than 1.2.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under DAPO, with a length penalty."""
  config = tiny.get_config()
  config.objective.name = "dapo"
  config.objective.overlong_limit = config.sampling.max_new_tokens
  config.objective.overlong_buffer = 2
  return config
