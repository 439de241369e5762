"""SmolLM2-135M-Instruct on GSM8K word problems: hard for a model this small.

Command: python -m jaxrl_llm run --config=configs/gsm8k_smollm2.py
  --config.prompts.path=PATH/TO/gsm8k/train.jsonl --workdir=runs/gsm8k
  (experiments/fetch_smollm2.sh brings the model)
Hardware: 2 CPU cores, 8 GiB of memory.
Expect: a run that completes in about 12 minutes. About 3 % of the answers are
  right, before and after: few groups hold both right and wrong answers, and
  only those teach. README.md holds the measured table.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns larger groups and longer responses, answers compared as maths."""
  config = base.get_config()
  config.model.path = ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
  config.prompts.source = "jsonl"
  config.prompts.count = 0
  config.prompts.template = (
      "{question}\nThink step by step, then give the final number after ####."
  )
  config.prompts.max_tokens = 256
  config.prompts.drop_long = True
  config.prompts.eval_count = 64
  config.evaluation.samples = 2
  config.evaluation.pass_at = "1,2"
  config.sampling.max_new_tokens = 160
  config.generation.samples_per_prompt = 8
  config.generation.prompts_per_round = 16
  config.generation.slots = 64
  config.generation.prompt_buckets = (128, 192, 256)
  config.generation.steps_per_call = 16
  config.reward.verifier = "math"
  config.train.tokens_per_row = 448
  config.train.rows_per_microbatch = 2
  config.train.learning_rate = 1e-5
  config.run.rounds = 2
  return config
