"""Qwen3-8B on 64 chips of TPU v6e.

Command: python -m jaxrl_llm compile --config=configs/slices/v6e_64.py
  (on the slice: run, with model.path and the prompts of the job)
Hardware: TPU v6e-64.
Expect: compile says 9.2 GiB of 32 for a micro-batch;
  experiments/scale/reports/ shows what it prints. Nothing was run on the slice.
"""

import ml_collections

from configs.slices import v5e_64


def get_config() -> ml_collections.ConfigDict:
  """Returns the job of v5e_64 with more slots."""
  config = v5e_64.get_config()
  config.generation.slots = 512
  config.compile.topology = "v6e:8x8"
  return config
