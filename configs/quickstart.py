"""SmolLM2-135M-Instruct learns arithmetic up to ten, off-policy with CTPO.

Command: bash experiments/quickstart.sh
  (after it has set up and fetched the model, the same as
  python -m jaxrl_llm run --config=configs/quickstart.py
  --workdir=runs/quickstart)
Hardware: 2 CPU cores, 8 GiB of memory.
Expect: exact match on 200 held-out problems from 17 to 20 % before to 57 to
  62 % after 4 rounds, by seed, in 6 to 7 minutes: the table of README.md.
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
  config.prompts.template = "{question} Answer with the number only."
  config.prompts.max_tokens = 56
  config.sampling.max_new_tokens = 14
  config.generation.prompts_per_round = 32
  config.generation.samples_per_prompt = 8
  config.generation.records_per_shard = 256
  config.generation.slots = 64
  config.generation.prompt_buckets = (56,)
  config.generation.steps_per_call = 7
  # One step of Adam moves a small model's log-probs past the default bounds of
  # 0.025 and 0.05 nats, which would cut most of what follows it.
  config.objective.log_clip_low = 0.2
  config.objective.log_clip_high = 0.2
  config.train.groups_per_minibatch = 16
  config.train.rows_per_microbatch = 4
  config.train.tokens_per_row = 320
  config.train.learning_rate = 1e-5
  config.train.checkpoints_kept = 1
  config.run.rounds = 4
  return config
