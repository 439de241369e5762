"""SmolLM2-135M-Instruct learns one-digit arithmetic, off-policy with CTPO.

Command: bash experiments/quickstart.sh
  (after it has set up and fetched the model, the same as
  python -m jaxrl_llm run --config=configs/quickstart.py
  --workdir=runs/quickstart)
Hardware: 2 CPU cores, 8 GiB of memory.
Expect: accuracy on 200 held-out problems before and after, with the interval
  of the gain; README.md holds a measured table.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns sums, differences and products of two numbers up to ten."""
  config = base.get_config()
  config.model.path = ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
  config.prompts.task_args = (
      '{"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1,'
      ' "operators": ["+", "-", "*"], "allow_negation": false,'
      ' "allow_parentheses": false}'
  )
  # The family has 363 problems: 200 are held out, the others are trained on.
  config.prompts.eval_share = 0.6
  config.prompts.max_tokens = 64
  config.sampling.max_new_tokens = 14
  config.generation.prompts_per_round = 24
  config.generation.samples_per_prompt = 8
  config.generation.records_per_shard = 192
  config.generation.slots = 64
  config.generation.prompt_buckets = (64,)
  config.model.remat = "none"
  config.train.groups_per_minibatch = 8
  config.train.rows_per_microbatch = 4
  config.train.tokens_per_row = 256
  config.train.learning_rate = 3e-5
  config.train.checkpoints_kept = 1
  config.run.rounds = 5
  return config
