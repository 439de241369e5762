"""Holds what is fast against what is plain: log-probs and gradients.

Command: .venv/bin/python experiments/benchmarks/values.py [--model=PATH.gguf]
  [--rows=2] [--tokens=256]
Hardware: 2 CPU cores, 8 GiB of memory; about 3 minutes.
Expect: one JSON line per comparison. Log-probs in bfloat16 differ from the
  plain bfloat16 form by at most 1e-3 nats; gradients in bfloat16, of rows with
  advantages of 1 and −1 in turn, point where those in float32 do, by a cosine
  of at least 0.9995 over all parameters. Exit code 1 if one does not.

The text is drawn from the model itself at temperature 1, by the engine; so its
log-probs, of the cache and one token at a time, are compared too, with those
of whole rows. That difference is of two orders of the same sums in bfloat16
and has no bound here.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import settings as settings_lib
from jaxrl_llm.rollout import engine as engine_lib
from jaxrl_llm.rollout import responses
from jaxrl_llm.rollout import sampler

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = 16
LOGPROBS, COSINE = 1e-3, 0.9995


def drawn(policy, params, rows, tokens):
  """Returns rows of text, int32 [B, T], and log-probs where drawn, else 0."""
  start = np.random.default_rng(0).integers(0, 1000, (rows, PROMPT), np.int32)
  engine = engine_lib.Engine(
      policy, params, (),
      sampler.SamplingSettings(max_new_tokens=tokens - PROMPT),
      engine_lib.Shapes(rows, rows, (PROMPT,), 8),
  )
  ones = np.ones(1, np.float32)
  requests = [
      responses.Request(
          text, sampler.request_words("rollout", 0, 0, [row], [0]), ones
      )
      for row, text in enumerate(start)
  ]
  found = {row: response for row, _, response in engine.run(requests)}
  tokens = np.stack([found[row].tokens for row in range(rows)])
  logprobs = np.stack([found[row].logprobs for row in range(rows)])
  texts = np.concatenate([start, tokens], axis=1)
  return texts, np.pad(logprobs, ((0, 0), (PROMPT, 0)))


def score(policy, params, texts, plain=False):
  """Returns log-probs [B, T] of rows of one segment each."""
  ones = jnp.ones(texts.shape, jnp.int32)
  positions = jnp.broadcast_to(jnp.arange(texts.shape[1]), texts.shape)
  return policy.token_logprobs(
      params, texts, ones, ones, positions, ones.astype(jnp.float32),
      plain=plain,
  ).logprobs


def gradient(policy, params, texts, weights):
  """Returns ∇ Σ weights · log-probs, as one array; weights [B, 1]."""

  @jax.jit
  def slope(params):
    return jax.grad(
        lambda p: jnp.sum(weights * score(policy, p, texts))
    )(params)

  leaves = jax.tree.leaves(slope(params))
  # In float32, sums over all parameters are off by more than is looked for.
  return np.concatenate([np.ravel(x).astype(np.float64) for x in leaves])


def main() -> int:
  """Compares; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--model", type=pathlib.Path, default=MODEL)
  parser.add_argument("--rows", type=int, default=2)
  parser.add_argument("--tokens", type=int, default=256)
  asked = parser.parse_args()
  settings = settings_lib.ModelSettings(
      str(asked.model), "", "", "bfloat16", "products"
  )
  policy, params = policy_lib.load(asked.model, settings)
  texts, recorded = drawn(policy, params, asked.rows, asked.tokens)
  run = jax.jit(functools.partial(score, policy), static_argnames="plain")
  fast, plain = (
      np.asarray(run(params, texts, plain=plain)) for plain in (False, True)
  )
  apart = np.abs(fast - plain).max()
  print(json.dumps({"log-probs, fast and plain, largest gap": float(apart)}))
  gap = np.abs(fast - recorded)[:, PROMPT:]
  print(json.dumps({
      "log-probs, rows and sampler, mean gap": float(gap.mean()),
      "largest": float(gap.max()),
  }))
  weights = np.where(np.arange(asked.rows) % 2, -1.0, 1.0)[:, None]
  exact = dataclasses.replace(policy, compute_dtype="float32")
  short, long = (
      gradient(one, params, texts, weights) for one in (policy, exact)
  )
  cosine = np.dot(short, long) / np.linalg.norm(short) / np.linalg.norm(long)
  print(json.dumps({"gradients, bfloat16 and float32, cosine": float(cosine)}))
  return int(apart > LOGPROBS or cosine < COSINE)


if __name__ == "__main__":
  sys.exit(main())
