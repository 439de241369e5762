"""A round of a tiny random model; run as a script, it is there to be killed.

python tiny_round.py FOLDER
"""

import sys

import jax
import numpy as np

from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.rollout import generator
from jaxrl_llm.rollout import rewards
from jaxrl_llm.rollout import sampler

POLICY = policy_lib.Policy(policy_lib.preset("tiny"), "float32")
TOKENIZER = tokenizer_lib.load("bytes")
SETTINGS = generator.GenerationSettings(
    slots=8,
    prefill_rows=2,
    prompt_buckets=(16, 40),
    steps_per_call=3,
    records_per_shard=10,
)
SAMPLING = sampler.SamplingSettings(max_new_tokens=8, top_p=0.9, record_topk=2)
COUNTS = (4, 6, 3, 25, 0, 4, 4, 4, 4, 4)


def params(seed=0):
  return POLICY.init(jax.random.key(seed))


def prompts():
  made = []
  for number in range(len(COUNTS)):
    text = f"{number} + {number * 7} = ?"
    tokens = TOKENIZER.apply_chat_template([{"role": "user", "content": text}])
    made.append(
        prompts_lib.Prompt(
            (1 << 40) + number, np.array(tokens, np.int32), text,
            str(number * 8), {},
        )
    )
  return made


def generate(folder, **changes):
  """Generates the round; `changes` replace arguments."""
  arguments = dict(
      policy=POLICY,
      params=params(),
      tokenizer=TOKENIZER,
      prompts=prompts(),
      counts=COUNTS,
      sampling=SAMPLING,
      settings=SETTINGS,
      folder=folder,
      version=5,
      lineage="tiny",
      round_number=3,
      seed=7,
      grader=rewards.build(
          rewards.RewardSettings(), prompts_lib.PromptSettings()
      ),
      config={"note": "tiny"},
      progress=False,
  )
  return generator.generate_round(**{**arguments, **changes})


if __name__ == "__main__":
  print(generate(sys.argv[1]))
