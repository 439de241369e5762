"""SmolLM2-135M-Instruct learns one-digit arithmetic, off-policy with CTPO.

Command: bash experiments/quickstart.sh
  (after it has set up and fetched the model, the same as
  python -m jaxrl_llm run --config=configs/quickstart.py
  --workdir=runs/quickstart)
Hardware: 2 CPU cores, 8 GiB of memory.
Expect: accuracy on 200 held-out problems before and after, with the interval
  of the gain; README.md holds the measured table and the wall-clock.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns two-term sums and differences, 128 responses per round."""
  config = base.get_config()
  config.model.path = ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
  config.prompts.max_tokens = 64
  config.sampling.max_new_tokens = 24
  config.generation.slots = 64
  config.generation.prompt_buckets = (64,)
  config.train.learning_rate = 2e-5
  config.run.rounds = 4
  return config
