"""Qwen3-0.6B on 16 chips of TPU v5e.

Command: python -m jaxrl_llm compile --config=configs/slices/v5e_16.py
  (on the slice: run, with model.path and the prompts of the job)
Hardware: TPU v5litepod-16.
Expect: compile says that each program fits (a micro-batch takes 5.8 GiB of 16,
  decode 8.5); README.md shows what it prints. Nothing was run on the slice.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the sizes that one such slice takes."""
  config = base.get_config()
  config.mesh = "data=2,fsdp=8"
  config.model.preset = "qwen3-0.6b"
  config.model.remat = "layers"
  config.prompts.max_tokens = 1024
  config.sampling.max_new_tokens = 3072
  config.generation.prompt_buckets = (256, 512, 1024)
  config.generation.prefill_rows = 16
  config.generation.slots = 256
  config.generation.steps_per_call = 16
  config.train.rows_per_microbatch = 16
  config.train.tokens_per_row = 4096
  config.train.learning_rate = 1e-6
  config.compile.topology = "v5e:4x4"
  return config
