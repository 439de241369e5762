"""CTPO: cumulative ratios in bounds that grow with the root of position.

The authors' code adds a cut of log-ratios above 0.05 √t where the advantage is
negative; the paper does not.

Command: python -m jaxrl_llm run --config=configs/objectives/ctpo.py
  --workdir=runs/ctpo
Hardware: one CPU core.
Expect: `clip` in metrics.jsonl is above 0 from the second update of a batch
  on; the bounds are narrow, 0.025 to 0.05 nats at the first token.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under CTPO as its code has it."""
  config = tiny.get_config()
  config.objective.name = "ctpo"
  config.objective.dual_log_clip = 0.05
  return config
