"""The tiny model answers 24 short questions with a number of four digits.

Command: see study.py beside it, which names problems and model.
Hardware: 2 CPU cores.
Expect: a round of 192 responses of five tokens and its 8 updates in about a
  second.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns every question in every round, so that lags differ in age alone."""
  config = base.get_config()
  config.model.compute_dtype = "float32"
  config.model.remat = "none"
  config.prompts.source = "jsonl"
  config.prompts.answer_field = "answer"
  config.prompts.count = 0
  config.prompts.eval_count = 8
  config.prompts.eval_share = 0.25
  config.prompts.max_tokens = 8
  config.sampling.max_new_tokens = 5
  config.sampling.record_topk = 100  # Of sis.
  config.generation.prompts_per_round = 24
  config.generation.samples_per_prompt = 8
  config.generation.slots = 64
  config.generation.prefill_rows = 24
  config.generation.prompt_buckets = (8,)
  config.generation.steps_per_call = 5
  config.generation.records_per_shard = 192
  config.objective.name = "ppo"
  config.train.epochs = 4
  config.train.groups_per_minibatch = 12
  config.train.rows_per_microbatch = 12
  config.train.tokens_per_row = 64
  config.train.learning_rate = 3e-4
  config.train.checkpoints_kept = 1
  config.evaluation.samples = 64
  config.evaluation.pass_at = "1"
  config.lab.correction = "bypass"
  config.lab.objectives = (
      "grpo,gspo,ctpo,cppo_prefix,sis,acpo_adaptive,acpo_advantage,"
      "dppo_divergence,tis=ppo:correction=tis"
  )
  config.lab.lags = (0, 1, 2, 4, 8, 16)
  config.lab.seeds = (0, 1, 2)
  return config
