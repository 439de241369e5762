"""Qwen3-8B on one host with 8 H200.

Command: python -m jaxrl_llm run --config=configs/slices/h200_8.py
  --config.model.path=DIR --workdir=DIR
Hardware: 8 NVIDIA H200 of one host.
Expect: nothing was measured on such a host. The state (masters, gradients,
  moments) is 15 GiB on each GPU.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns rows and slots for eight GPUs that share one copy of the state."""
  config = base.get_config()
  config.mesh = "fsdp=8"
  config.model.preset = "qwen3-8b"
  config.model.remat = "layers"
  config.prompts.max_tokens = 1024
  config.sampling.max_new_tokens = 3072
  config.generation.prompt_buckets = (256, 512, 1024)
  config.generation.slots = 128
  config.generation.steps_per_call = 16
  config.train.rows_per_microbatch = 16
  config.train.tokens_per_row = 4096
  config.train.learning_rate = 1e-6
  return config
