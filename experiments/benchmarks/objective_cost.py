"""Measures what each objective costs beside the model's own work.

Command: .venv/bin/python experiments/benchmarks/objective_cost.py
  [--rows=8] [--tokens=2048] [--repeats=20] [--model=PATH.gguf] [--passes]
Hardware: 2 CPU cores, 16 GiB of memory; about 10 minutes (--passes: 20).
Expect: one JSON line per objective with the seconds of its loss and gradient,
  `over_ppo`: what they add to plain ppo, as a share of forward + backward, and
  `positions`: the share of the diagnostics by position; exit code 1 when the
  former is 2 % or more, or the latter 1 %.

The model's forward and backward are timed once for all, on the same rows. What
a method needs beside its loss is reported apart: the statistics' sums, and with
--passes the model's gradient-free pass, with and without entropy or top-K.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import resource
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import settings as settings_lib

LIMIT = 0.02
POSITIONS_LIMIT = 0.01
ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

# Beside the registry's defaults.
VARIANTS = {
    "cppo_prefix, top-K TV, dynamic budget": {
        "name": "cppo_prefix", "divergence": "topk_tv", "budget": "dynamic",
    },
    "dppo_divergence, top-K KL": {
        "name": "dppo_divergence", "divergence": "topk_kl",
    },
    "gspo, sis": {"name": "gspo", "selection": "sis"},
    "grpo, tis + rejection": {
        "name": "grpo", "correction": "tis+rejection",
    },
}


def make_terms(
    needs: objective.Requirements, rows: int, tokens: int
) -> types.Terms:
  """Draws terms [rows, tokens] of one response per row, policies near."""
  draw = np.random.default_rng(0)
  shape = (rows, tokens)
  topk = needs.behavior_topk or needs.proximal_topk
  behavior = -draw.gamma(1.0, 1.0, shape)
  near = lambda: np.minimum(behavior + 0.02 * draw.normal(size=shape), 0.0)
  spread = lambda values: np.repeat(values[:, None], tokens, axis=1)
  optional = {}
  if topk:
    logprobs = np.log(draw.dirichlet(np.ones(topk + 1), shape)[..., :topk])
    optional = {
        "topk_ids": draw.integers(0, 999, (*shape, topk)),
        "topk_anchor_logprobs": logprobs,
        "topk_logprobs": logprobs + 0.01 * draw.normal(size=logprobs.shape),
    }
  if needs.key:
    optional["key"] = jax.random.key(0)
  if needs.reference:
    optional["reference_logprobs"] = near()
  if needs.pairs:
    optional["sequence_scores"] = draw.normal(size=rows)
    optional["sequence_groups"] = np.arange(rows) // 4
  terms = types.Terms(
      mask=np.ones(shape, bool),
      tokens=draw.integers(0, 999, shape),
      segment_ids=np.ones(shape, int),
      sequence_ids=spread(np.arange(rows)),
      group_ids=spread(np.arange(rows) // 4),
      record_ids=spread(np.arange(rows, dtype=np.uint32)),
      response_positions=np.broadcast_to(np.arange(tokens), shape),
      versions=np.zeros(shape, int),
      advantages=spread(draw.normal(size=rows)),
      rewards=spread(draw.normal(size=rows)),
      weights=np.ones(shape),
      behavior_logprobs=behavior,
      proximal_logprobs=near(),
      logprobs=near(),
      entropy=-behavior,
      **optional,
  )
  return jax.tree.map(_on_device, terms)


def _on_device(array):
  if isinstance(array, jax.Array):
    return array
  kind = np.asarray(array).dtype.kind
  return jnp.asarray(array, {"f": jnp.float32, "i": jnp.int32}.get(kind))


def median_seconds(function, repeats: int) -> float:
  """Calls once to compile, then returns the median time of a call."""
  jax.block_until_ready(function())
  seconds = []
  for _ in range(repeats):
    began = time.perf_counter()
    jax.block_until_ready(function())
    seconds.append(time.perf_counter() - began)
  return statistics.median(seconds)


def loss_seconds(
    spec: objective.Spec, terms: types.Terms, repeats: int
) -> tuple[float, float, float]:
  """Times the loss, its statistics and its diagnostics by position.

  Returns:
    Seconds of denominators, loss, gradient and diagnostics; of the sums of
    the first pass; and what leaving out the diagnostics by position saves of
    the first.
  """
  sums = None
  sums_seconds = 0.0
  if objective.requirements(spec).statistics:
    add = jax.jit(functools.partial(objective.statistics, spec))
    sums = add(terms)
    sums_seconds = median_seconds(lambda: add(terms), repeats)

  def loss(by_position, live, terms, sums):
    terms = dataclasses.replace(terms, **live)
    weights = objective.denominators(spec, terms)
    output = objective.apply(spec, terms, weights, sums)
    metrics = dict(output.metrics)
    if not by_position:
      del metrics["positions"]
    return output.loss, metrics

  live = {
      "logprobs": terms.logprobs,
      "topk_logprobs": terms.topk_logprobs,
  }
  seconds = {}
  for by_position in (True, False):
    chosen = functools.partial(loss, by_position)
    run = jax.jit(jax.value_and_grad(chosen, has_aux=True))
    seconds[by_position] = median_seconds(
        lambda run=run: run(live, terms, sums), repeats
    )
  return seconds[True], sums_seconds, seconds[True] - seconds[False]


def model_seconds(
    policy: policy_lib.Policy,
    params: types.PyTree,
    terms: types.Terms,
    repeats: int,
    gradient: bool,
    **asked,
) -> float:
  """Times the model over the rows, with or without the backward pass."""

  def total(params):
    segments = terms.segment_ids
    scored = policy.token_logprobs(
        params, terms.tokens, segments, segments, terms.response_positions,
        jnp.ones_like(terms.logprobs), terms.mask, **asked,
    )
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(scored))

  run = jax.jit(jax.grad(total) if gradient else total)
  return median_seconds(lambda: run(params), repeats)


def main() -> int:
  """Prints the lines; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--rows", type=int, default=8)
  parser.add_argument("--tokens", type=int, default=2048)
  parser.add_argument("--repeats", type=int, default=20)
  parser.add_argument("--model", default=str(MODEL))
  parser.add_argument("--passes", action="store_true")
  asked = parser.parse_args()
  specs = {
      name: algorithms.build({"name": name}) for name in algorithms.REGISTRY
  } | {what: algorithms.build(keys) for what, keys in VARIANTS.items()}
  times = {}
  for name, spec in specs.items():
    needs = objective.requirements(spec)
    terms = make_terms(needs, asked.rows, asked.tokens)
    times[name] = loss_seconds(spec, terms, asked.repeats)
  settings = settings_lib.ModelSettings(
      path=asked.model,
      preset="tiny",
      tokenizer="",
      compute_dtype="bfloat16",
      remat="layers",
  )
  policy, params = policy_lib.load(asked.model, settings)
  whole = model_seconds(policy, params, terms, 1, gradient=True)
  shares = {
      name: (seconds - times["ppo"][0]) / whole
      for name, (seconds, *_) in times.items()
  }
  for name, (seconds, sums_seconds, by_position) in times.items():
    print(json.dumps({
        "objective": name,
        "loss_seconds": round(seconds, 5),
        "over_ppo": round(shares[name], 6),
        "statistics_seconds": round(sums_seconds, 5),
        "positions_seconds": round(by_position, 5),
        "positions": round(by_position / whole, 6),
    }), flush=True)
  tokens = asked.rows * asked.tokens
  print(json.dumps({
      "forward_backward_seconds": round(whole, 2),
      "tokens_per_second": round(tokens / whole, 1),
      "peak_gib": round(
          resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2
      ),
  }), flush=True)
  if asked.passes:
    ids = jnp.zeros((asked.rows, asked.tokens, 20), jnp.int32)
    for what, options in {
        "forward": {}, "entropy": {"entropy": True},
        "gather_20": {"gather_ids": ids}, "topk_100": {"topk": 100},
    }.items():
      seconds = model_seconds(policy, params, terms, 1, False, **options)
      print(json.dumps({
          "pass": what, "seconds": round(seconds, 2),
          "of_forward_backward": round(seconds / whole, 3),
      }), flush=True)
  largest = max(by_position for *_, by_position in times.values())
  over = max(shares.values()) >= LIMIT or largest / whole >= POSITIONS_LIMIT
  return 1 if over else 0


if __name__ == "__main__":
  sys.exit(main())
