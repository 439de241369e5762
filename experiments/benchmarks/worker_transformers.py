"""transformers and torch as a program of `turns`: the same jobs as ours.

Command: PEERS/transformers/bin/python
  experiments/benchmarks/worker_transformers.py MODEL [DTYPE]
Hardware: one or two CPU cores.
Expect: waits for jobs on its input; started by speed.py in the environment
  that peers.sh makes.
"""

import sys

import torch
import transformers
import turns


class Worker:
  """The model; weights, activations and optimizer in one dtype."""

  def __init__(self, path: str, dtype: str):
    torch.manual_seed(0)
    self._model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype)
    )
    self._optimizer = None

  def generate(
      self, prompts: int, samples: int, prompt: int, new: int,
      temperature: float = 0.0, **unused,
  ) -> dict[str, float]:
    """Draws prompts × samples responses of `new` tokens, in one batch."""
    del unused
    self._model.eval()
    vocabulary = self._model.config.vocab_size
    tokens = torch.randint(0, vocabulary, (prompts, prompt))
    chosen = {"do_sample": False}
    if temperature:
      chosen = {"do_sample": True, "temperature": temperature, "top_k": 0}

    @torch.inference_mode()
    def answer():
      made = self._model.generate(
          tokens.repeat_interleave(samples, 0),
          attention_mask=torch.ones(prompts * samples, prompt).long(),
          max_new_tokens=new, min_new_tokens=new, pad_token_id=0, **chosen,
      )
      assert made.shape[1] == prompt + new

    return {"seconds": turns.timed(answer), "tokens": prompts * samples * new}

  def train(self, rows: int, tokens: int) -> dict[str, float]:
    """One update on `rows` rows: forward, backward, AdamW."""
    self._model.train()
    if self._optimizer is None:
      self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6)
    vocabulary = self._model.config.vocab_size
    ids = torch.randint(0, vocabulary, (rows, tokens))
    advantages = torch.randn(rows, 1)
    old = -5.0 * torch.rand(rows, tokens - 1)
    mask = (torch.arange(1, tokens) >= tokens // 4).float()

    def update():
      self._optimizer.zero_grad(set_to_none=True)
      logits = self._model(ids).logits[:, :-1]
      # One float32 row of the vocabulary at a time, as TRL does.
      live = torch.stack([
          torch.log_softmax(row.float(), -1)
          .gather(-1, chosen[:, None])[:, 0]
          for row, chosen in zip(logits, ids[:, 1:])
      ])
      ratio = torch.exp(live - old)
      clipped = torch.clamp(ratio, 0.8, 1.2)
      loss = -torch.minimum(ratio * advantages, clipped * advantages)
      loss = (loss * mask).sum() / (mask.sum() * rows)
      loss.backward()
      torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
      self._optimizer.step()

    return {"seconds": turns.timed(update), "tokens": rows * tokens}


if __name__ == "__main__":
  worker = Worker(sys.argv[1], (sys.argv[2:] or ["bfloat16"])[0])
  turns.serve({"generate": worker.generate, "train": worker.train})
