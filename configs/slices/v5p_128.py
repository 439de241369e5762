"""Qwen3-8B on the 64 chips of TPU v5p-128.

Command: python -m jaxrl_llm compile --config=configs/slices/v5p_128.py
  (on the slice: run, with model.path and the prompts of the job)
Hardware: TPU v5p-128, 64 chips.
Expect: compile says 9.1 GiB of 95 for a micro-batch and at least 0.28 s for
  131,072 tokens; experiments/scale/reports/ shows what it prints. Nothing was
  run on the slice.
"""

import ml_collections

from configs.slices import v5e_64


def get_config() -> ml_collections.ConfigDict:
  """Returns the job of v5e_64 with more slots."""
  config = v5e_64.get_config()
  config.generation.slots = 512
  config.compile.topology = "v5p:4x4x4"
  return config
