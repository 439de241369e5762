"""CPPO: of each question, the completions with the largest |A|.

Command: python -m jaxrl_llm run --config=configs/curation_cppo_completion.py
  --workdir=runs/curation_cppo_completion
Hardware: one CPU core.
Expect: `curation/survivor_share` of 0.5 in metrics.jsonl, and
  `curation/saved_token_share`, the part of the rows that was not computed.
"""

import ml_collections

from configs import tiny


def get_config() -> ml_collections.ConfigDict:
  """Returns the tiny job under GRPO on half of the completions."""
  config = tiny.get_config()
  config.objective.name = "grpo"
  config.curation.name = "cppo_completion"
  return config
