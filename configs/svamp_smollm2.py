"""SmolLM2-135M-Instruct on SVAMP word problems, which are one step long.

Command: python -m jaxrl_llm run --config=configs/svamp_smollm2.py
  --config.prompts.path=PATH/TO/svamp/SVAMP.json --workdir=runs/svamp
  (experiments/fetch_smollm2.sh brings the model)
Hardware: 2 CPU cores, 8 GiB of memory.
Expect: a run that completes in about 13 minutes. About 5 % of the answers are
  right, before and after; README.md holds the measured table.
"""

import ml_collections

from configs import gsm8k_smollm2


def get_config() -> ml_collections.ConfigDict:
  """Returns the GSM8K settings with SVAMP's fields and shorter responses."""
  config = gsm8k_smollm2.get_config()
  config.prompts.question_field = "Body,Question"
  config.prompts.answer_field = "Answer"
  config.prompts.max_tokens = 128
  config.prompts.eval_count = 100
  config.sampling.max_new_tokens = 96
  config.generation.prompts_per_round = 24
  config.generation.prompt_buckets = (96, 128)
  config.run.rounds = 3
  return config
