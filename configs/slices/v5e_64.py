"""Qwen3-8B on 64 chips of TPU v5e.

Command: python -m jaxrl_llm compile --config=configs/slices/v5e_64.py
  (on the slice: run, with model.path and the prompts of the job)
Hardware: TPU v5litepod-64.
Expect: compile says 10.5 GiB of 16 for a micro-batch. Nothing was run on the
  slice.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the sizes that one such slice takes."""
  config = base.get_config()
  config.mesh = "fsdp=32,tensor=2"
  config.model.preset = "qwen3-8b"
  config.model.remat = "layers"
  config.prompts.max_tokens = 1024
  config.sampling.max_new_tokens = 3072
  config.generation.prompt_buckets = (256, 512, 1024)
  config.generation.prefill_rows = 64
  config.generation.slots = 256
  config.generation.steps_per_call = 16
  config.train.rows_per_microbatch = 32
  config.train.tokens_per_row = 4096
  config.train.learning_rate = 1e-6
  config.compile.topology = "v5e:8x8"
  return config
