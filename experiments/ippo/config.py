"""The tiny model answers 24 short questions with a digit, under PPO.

Command: see planted_noise.py beside it, which names the prompts.
Hardware: one CPU core.
Expect: a round of 384 responses and its 4 updates in about a second.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns short prompts, two tokens of response, four updates a round."""
  config = base.get_config()
  config.model.compute_dtype = "float32"
  config.model.remat = "none"
  config.prompts.source = "jsonl"
  config.prompts.count = 0
  config.prompts.eval_count = 8
  config.prompts.eval_share = 0.25
  config.prompts.max_tokens = 8
  config.sampling.max_new_tokens = 2
  config.generation.prompts_per_round = 24
  config.generation.samples_per_prompt = 16
  config.generation.slots = 128
  config.generation.prefill_rows = 24
  config.generation.prompt_buckets = (8,)
  config.generation.steps_per_call = 2
  config.generation.records_per_shard = 384
  config.objective.name = "ppo"
  config.objective.correction = "none"
  config.train.groups_per_minibatch = 12
  config.train.rows_per_microbatch = 12
  config.train.tokens_per_row = 40
  config.train.learning_rate = 1e-3
  config.train.checkpoints_kept = 1
  config.evaluation.samples = 64
  config.evaluation.pass_at = "1"
  return config
