"""A random model of two layers learns to answer with a small number.

Command: python -m jaxrl_llm run --config=configs/tiny.py --workdir=runs/tiny
Hardware: one CPU core.
Expect: every part of the job in a few minutes, most of them compiling. The
  task is the greatest common divisor, most often 1, so the reward rises from
  nearly 0 as soon as the model finds that out.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns base's random model with short responses and a large step."""
  config = base.get_config()
  config.model.compute_dtype = "float32"
  config.prompts.task = "gcd"
  config.prompts.task_args = '{"max_value": 99}'
  config.prompts.count = 512
  config.prompts.eval_count = 32
  config.sampling.max_new_tokens = 4
  config.generation.samples_per_prompt = 16
  config.generation.slots = 64
  config.generation.prompt_buckets = (128,)
  config.train.groups_per_minibatch = 4
  config.train.rows_per_microbatch = 16
  config.train.tokens_per_row = 256
  config.train.learning_rate = 1e-2
  config.run.rounds = 8
  return config
