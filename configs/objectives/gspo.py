"""GSPO: one ratio per response, the geometric mean of its tokens'.

The clip is narrow since a mean hardly moves: 3e-4 below 1 and 4e-4 above.

Command: python -m jaxrl_llm run --config=configs/objectives/gspo.py
  --workdir=runs/gspo
Hardware: one CPU core.
Expect: a response is cut as a whole; at this learning rate most are after the
  first update of a batch (`clip` in metrics.jsonl).
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under GSPO."""
  config = tiny.get_config()
  config.objective.name = "gspo"
  return config
