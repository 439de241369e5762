"""Measures what influence scores cost beside the model's own passes.

Command: .venv/bin/python experiments/benchmarks/influence_cost.py
  [--rows=8] [--tokens=256] [--repeats=5] [--model=PATH.gguf]
Hardware: 2 CPU cores, 8 GiB of memory; about 15 minutes.
Expect: one JSON line per pass with the median of its seconds and the memory
  that it needs beside its arguments and results, then the ratios. Exit code 1
  where the forward-mode pass takes more than 3.5 forward passes or more than
  one forward and backward pass (with all activations kept), where it needs
  more than 2.5 times the forward pass's memory, or where a product of it is
  not one of bfloat16. influence_cost.txt is what it printed.

The batch is the same for all: a row per episode, a prompt of an eighth of it,
ppo with the first update's ratios near 1. The passes take turns, so that what
else the machine does falls on all of them. Backward passes per episode are
timed for two of the episodes and scaled to all.
"""

import argparse
from collections.abc import Callable
import dataclasses
import json
import pathlib
import re
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.curation import influence
from jaxrl_llm.losses import algorithms
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import settings as settings_lib
from jaxrl_llm.training import influence_steps

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SPEC = algorithms.build({"name": "ppo", "correction": "none"})
FORWARDS, MEMORY = 3.5, 2.5
TIMED = 2


@dataclasses.dataclass(frozen=True)
class Pass:
  """A compiled function, what it is called with, and how often per batch."""

  compiled: Any
  arguments: tuple[Any, ...]
  times: float = 1.0

  @property
  def mebibytes(self) -> float:
    """Memory beside arguments and results."""
    return self.compiled.memory_analysis().temp_size_in_bytes / 2**20

  def seconds(self) -> float:
    began = time.perf_counter()
    jax.block_until_ready(self.compiled(*self.arguments))
    return self.times * (time.perf_counter() - began)


def make_batch(rows: int, tokens: int, vocabulary: int) -> types.Batch:
  """Draws random tokens [rows, tokens], an episode per row."""
  draw = np.random.default_rng(0)
  shape = (rows, tokens)
  spread = lambda values: jnp.repeat(jnp.asarray(values)[:, None], tokens, 1)
  positions = jnp.broadcast_to(jnp.arange(tokens), shape)
  ones = jnp.ones(shape, jnp.int32)
  ids = jnp.asarray(draw.integers(0, vocabulary, shape), jnp.int32)
  prompt = tokens // 8
  terms = types.Terms(
      mask=positions >= prompt,
      tokens=ids,
      segment_ids=ones,
      sequence_ids=spread(np.arange(rows)),
      response_positions=jnp.maximum(positions - prompt, 0),
      advantages=spread(draw.normal(size=rows).astype(np.float32)),
  )
  return types.Batch(
      tokens=ids,
      segment_ids=ones,
      parent_ids=ones,
      positions=positions,
      temperatures=jnp.ones(shape),
      terms=terms,
  )


def losses(
    policy: policy_lib.Policy, params: types.PyTree, batch: types.Batch,
    plain: bool,
) -> jax.Array:
  """Returns the loss of every episode, float32 [B]."""
  return influence_steps.contributions(
      policy, SPEC, params, batch, None, plain
  ).sum(axis=1)


def row(batch: types.Batch, number: int) -> types.Batch:
  """Returns an episode of a batch."""
  return jax.tree.map(lambda x: x[number : number + 1], batch)


def at_the_first_update(
    policy: policy_lib.Policy, params: types.PyTree, batch: types.Batch
) -> types.Batch:
  """Sets the proximal log-probs to the policy's own."""
  score = jax.jit(
      lambda params: policy.token_logprobs(
          params, batch.tokens, batch.segment_ids, batch.parent_ids,
          batch.positions, batch.temperatures, batch.terms.mask,
      ).logprobs
  )
  terms = dataclasses.replace(batch.terms, proximal_logprobs=score(params))
  return dataclasses.replace(batch, terms=terms)


def compile_passes(
    policy: policy_lib.Policy, params: types.PyTree, batch: types.Batch
) -> dict[str, Pass]:
  """Compiles every pass; the direction is the batch's own gradient."""
  kept, remat = (
      dataclasses.replace(policy, remat=remat) for remat in ("none", "layers")
  )

  def backward(policy):
    def run(params, batch):
      total = lambda tree: losses(policy, tree, batch, False).sum()
      return jax.value_and_grad(total)(params)

    return run

  def scores(params, direction, batch):
    run = lambda tree: losses(policy, tree, batch, True)
    return influence.scores(run, params, direction)

  def product(params, direction, batch):
    slope = backward(kept)(params, batch)[1]
    return sum(map(jnp.vdot, *map(jax.tree.leaves, (slope, direction))))

  def made(function: Callable, *arguments, times=1.0) -> Pass:
    compiled = jax.jit(function).lower(*arguments).compile()
    return Pass(compiled, arguments, times)

  plain = made(backward(kept), params, batch)
  direction = influence.unit(plain.compiled(params, batch)[1])
  passes = {
      "forward": made(
          lambda params, batch: losses(policy, params, batch, False),
          params, batch,
      ),
      "forward-mode scores": made(scores, params, direction, batch),
      "forward + backward": plain,
      "forward + backward, remat": made(backward(remat), params, batch),
  }
  rows = batch.tokens.shape[0]
  one = made(product, params, direction, row(batch, 0), times=rows / TIMED)
  for number in range(TIMED):
    passes[f"backward of episode {number}"] = dataclasses.replace(
        one, arguments=(params, direction, row(batch, number))
    )
  return passes


def wide_products(compiled: Any) -> int:
  """Counts the products of a program whose inputs are not bfloat16."""
  text = compiled.as_text()
  found = dict(re.findall(r"%([\w.\-]+) = (\w+)\[", text))
  operands = re.findall(r" dot\(%([\w.\-]+), %([\w.\-]+)\)", text)
  if not operands:
    raise ValueError("expected products in the program, found none.")
  return sum(
      any(found[name] != "bf16" for name in pair) for pair in operands
  )


def report(
    passes: dict[str, Pass], repeats: int
) -> tuple[dict[str, float], dict[str, float]]:
  """Times the passes in turns and prints them; seconds and memory by name."""
  timed = {name: [] for name in passes}
  for number in range(repeats + 1):
    for name, one in passes.items():
      seconds = one.seconds()
      if number:  # The first turn touches every page.
        timed[name].append(seconds)
  medians = {name: statistics.median(values) for name, values in timed.items()}
  episodes = [name for name in passes if "episode" in name]
  medians["backward per episode"] = sum(medians.pop(name) for name in episodes)
  memory = {name: one.mebibytes for name, one in passes.items()}
  memory["backward per episode"] = memory[episodes[0]]
  for name, seconds in medians.items():
    print(json.dumps({
        "pass": name,
        "seconds": round(seconds, 2),
        "of_forward": round(seconds / medians["forward"], 2),
        "memory_mib": round(memory[name]),
    }), flush=True)
  return medians, memory


def deviation(passes: dict[str, Pass]) -> float:
  """Returns |score − backward inner product| over the largest score."""
  one = passes["forward-mode scores"]
  found = np.asarray(one.compiled(*one.arguments))
  gaps = []
  for number in range(TIMED):
    one = passes[f"backward of episode {number}"]
    gaps.append(abs(found[number] - one.compiled(*one.arguments)))
  return float(max(gaps) / np.abs(found).max())


def main() -> int:
  """Prints the lines; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--rows", type=int, default=8)
  parser.add_argument("--tokens", type=int, default=256)
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument("--model", default=str(MODEL))
  asked = parser.parse_args()
  settings = settings_lib.ModelSettings(
      path=asked.model,
      preset="tiny",
      tokenizer="",
      compute_dtype="bfloat16",
      remat="none",
  )
  policy, params = policy_lib.load(asked.model, settings)
  batch = make_batch(asked.rows, asked.tokens, policy.config.vocab_size)
  batch = at_the_first_update(policy, params, batch)
  passes = compile_passes(policy, params, batch)
  seconds, memory = report(passes, asked.repeats)
  scores, forward = seconds["forward-mode scores"], seconds["forward"]
  wide = wide_products(passes["forward-mode scores"].compiled)
  shares = {
      "rows": asked.rows,
      "tokens": asked.tokens,
      "scores_over_forward": round(scores / forward, 2),
      "scores_over_forward_backward": round(
          scores / seconds["forward + backward"], 2
      ),
      "backward_per_episode_over_scores": round(
          seconds["backward per episode"] / scores, 2
      ),
      "products_not_bfloat16": wide,
      "deviation_from_backward": round(deviation(passes), 5),
  }
  print(json.dumps(shares), flush=True)
  kept = (
      scores <= FORWARDS * forward
      and scores <= seconds["forward + backward"]
      and memory["forward-mode scores"] <= MEMORY * memory["forward"]
      and not wide
  )
  return 0 if kept else 1


if __name__ == "__main__":
  sys.exit(main())
