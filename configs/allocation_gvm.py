"""GVM spends every second round where pilots ask for it.

Command: python -m jaxrl_llm run --config=configs/allocation_gvm.py
  --workdir=runs/allocation_gvm
Hardware: one CPU core.
Expect: every part of configs/tiny.py. Of two rounds the second poses
  some of the prompts of the first, in groups of unequal size.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job; a prompt gets a multiple of four responses."""
  config = tiny.get_config()
  config.allocation.name = "gvm"
  config.allocation.unit = 4
  return config
