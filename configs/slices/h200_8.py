"""Qwen3-8B on one host with 8 H200.

Command: python -m jaxrl_llm run --config=configs/slices/h200_8.py
  --config.model.path=DIR --workdir=DIR
Hardware: 8 NVIDIA H200 of one host.
Expect: nothing was measured on such a host. The state (masters, gradients,
  moments) is 15 GiB on each GPU.
"""

import ml_collections

from configs.slices import h100_8


def get_config() -> ml_collections.ConfigDict:
  """Returns the job of h100_8 with twice the rows."""
  config = h100_8.get_config()
  config.train.rows_per_microbatch = 16
  return config
