"""The whole job on a random model, to see that every part works.

Command: python -m jaxrl_llm run --config=configs/tiny.py --workdir=/tmp/tiny
Hardware: one CPU core.
Expect: a table, a picture and a checkpoint. The model is random and stays so:
  nothing is learned in these few updates, and no answer is right but by chance.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns base's random model with fewer problems, rounds and samples."""
  config = base.get_config()
  config.model.compute_dtype = "float32"
  config.prompts.count = 256
  config.prompts.eval_count = 8
  config.prompts.max_tokens = 64
  config.sampling.max_new_tokens = 8
  config.generation.prompts_per_round = 4
  config.generation.samples_per_prompt = 4
  config.generation.slots = 8
  config.generation.prefill_rows = 4
  config.generation.prompt_buckets = (64,)
  config.generation.records_per_shard = 8
  config.train.groups_per_minibatch = 2
  config.train.rows_per_microbatch = 4
  config.train.tokens_per_row = 96
  config.train.keep_uniform_groups = True
  config.evaluation.samples = 2
  config.evaluation.pass_at = "1,2"
  return config
