"""TRL as a program of `turns`: whole steps of GRPO.

Command: PEERS/trl/bin/python experiments/benchmarks/worker_trl.py MODEL
  [DTYPE]
Hardware: one or two CPU cores.
Expect: waits for jobs on its input; started by speed.py in the environment
  that peers.sh makes.

GRPOTrainer with its own generation (that of transformers), one update per
batch of responses, no reference model, no recomputation of activations and no
logging. Weights, activations and optimizer are all in DTYPE.
"""

import random
import sys

import datasets
import tokenizers
import torch
import transformers
import trl
import turns


class Pauses(transformers.TrainerCallback):
  """Holds the trainer before its first step and after every one."""

  def __init__(self, pace: turns.Pace):
    self._pace = pace

  def on_train_begin(self, *unused, **also_unused):
    self._pace.pause()

  def on_step_end(self, *unused, **also_unused):
    self._pace.pause()


class Worker:
  """The model and, from its first job on, its trainer."""

  def __init__(self, path: str, dtype: str):
    self._model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype)
    )
    # Random tokens end no response.
    self._model.generation_config.eos_token_id = None
    self._pace = None
    self._shape = None

  def step(
      self, prompts: int, samples: int, prompt: int, new: int, **unused
  ) -> dict[str, float]:
    """A whole step: draw groups of responses, update."""
    del unused
    shape = prompts, samples, prompt, new
    if self._pace is None:
      self._shape = shape
      self._pace = turns.Pace(self._train)
    if shape != self._shape:
      raise ValueError(f"expected the shape {self._shape}, found {shape}.")
    return {
        "seconds": turns.timed(self._pace.round),
        "tokens": prompts * samples * new,
    }

  def _train(self, pace):
    """Trains without end."""
    prompts, samples, prompt, new = self._shape
    vocabulary = self._model.config.vocab_size
    draw = random.Random(0)
    texts = [
        " ".join(str(draw.randrange(vocabulary)) for _ in range(prompt))
        for _ in range(1000)
    ]
    settings = trl.GRPOConfig(
        use_cpu=True, bf16=False, activation_checkpointing=False, beta=0.0,
        loss_type="grpo", learning_rate=1e-6, max_steps=10**6,
        num_generations=samples, per_device_train_batch_size=prompts * samples,
        max_completion_length=new, temperature=1.0, save_strategy="no",
        logging_strategy="no", report_to="none", disable_tqdm=True,
    )
    trl.GRPOTrainer(
        self._model, _reward(new), settings,
        datasets.Dataset.from_dict({"prompt": texts}),
        processing_class=_tokenizer(vocabulary), callbacks=[Pauses(pace)],
    ).train()


def _reward(new):
  """Rewards the share of odd ids, of responses of `new` tokens."""

  def share(completion_ids, **unused):
    del unused
    assert all(len(ids) == new for ids in completion_ids)
    return [sum(token % 2 for token in ids) / new for ids in completion_ids]

  return share


def _tokenizer(vocabulary):
  """Writes ids as numbers; what ends and fills is not in the vocabulary."""
  words = tokenizers.models.WordLevel(
      {str(number): number for number in range(vocabulary + 1)}, unk_token="0"
  )
  tool = tokenizers.Tokenizer(words)
  tool.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  end = str(vocabulary)
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=tool, eos_token=end, pad_token=end, padding_side="left"
  )


if __name__ == "__main__":
  worker = Worker(sys.argv[1], (sys.argv[2:] or ["bfloat16"])[0])
  turns.serve({"step": worker.step})
