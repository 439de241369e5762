"""The bias that selective importance sampling takes for its variance.

Command: .venv/bin/python -m experiments.theory.sis_bias
  [--png=runs/theory/sis_bias.png]
Hardware: 1 CPU core, seconds.
Expect: every line `ok`; exit code 1 when a statement fails.

Statements on SIS (arXiv 2607.04728), tokens drawn from q, live policy p,
r = p/q, envelope M = max r over the whole vocabulary, w the SIS ratio (1 where
accepted, r where rejected), f any function of the token:
  the acceptance rate is 1/M;
  E_q[w] = 1 − χ²(p‖q)/M;
  E_q[w f] = E_p f + (E_p f − E_p[r f])/M.
So SIS is biased where plain importance sampling and rejection sampling, which
keeps accepted tokens only, are not.

The expectations over the uniforms are taken once on a grid and once with the
library's own draws, where they may differ by five standard errors.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory import library
from experiments.theory import report
from experiments.theory import tabular
from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import tokens as tokens_lib

DRIFTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # Std of the logits' change.


@functools.lru_cache
def build(selection: str, vocabulary: int) -> algorithms.Spec:
  """Unclipped ratios, with or without the selection."""
  words = {
      "name": "ppo", "trust_region": "none", "aggregation": "token-sum",
      "selection": selection,
  }
  if selection == "sis":
    words["selection_topk"] = vocabulary
  return algorithms.build(words)


def terms(
    p: np.ndarray, q: np.ndarray, f: np.ndarray, draws: int, key: jax.Array
) -> types.Terms:
  """Every row lists the vocabulary, with uniforms of its own; q anchors."""
  vocabulary = len(p)
  shape = (draws, vocabulary)
  repeat = lambda x: jnp.broadcast_to(jnp.asarray(x), shape)
  spread = lambda x: jnp.broadcast_to(jnp.asarray(x), (*shape, vocabulary))
  ids = np.arange(vocabulary, dtype=np.int32)
  return types.Terms(
      mask=jnp.ones(shape, bool),
      tokens=repeat(ids),
      advantages=repeat(f),
      proximal_logprobs=repeat(np.log(q)),
      logprobs=repeat(np.log(p)),
      topk_ids=spread(ids),
      topk_anchor_logprobs=spread(np.log(q)),
      topk_logprobs=spread(np.log(p)),
      record_ids=jnp.broadcast_to(
          jnp.arange(draws, dtype=jnp.uint32)[:, None], shape
      ),
      response_positions=repeat(ids),
      key=key,
  )


@jax.jit
def grid_acceptance(batch: types.Terms) -> jax.Array:
  """Share of a grid of uniforms at which each token passes, [V]."""
  draws, vocabulary = batch.mask.shape
  spec = build("sis", vocabulary)
  uniforms = (jnp.arange(draws)[:, None] + 0.5) / draws
  accepted = spec.selection.accepted(
      jnp.log(uniforms), tokens_lib.view(spec, batch)
  )
  return jnp.mean(accepted.astype(float), axis=0)


def acceptance_rate(p: np.ndarray, q: np.ndarray) -> float:
  """1/M; a ratio of exactly 1 always passes, which adds q (1 − 1/M)."""
  ratios = np.exp(np.log(p) - np.log(q))
  largest = np.max(ratios)
  return 1.0 / largest + np.sum(q[ratios == 1.0]) * (1.0 - 1.0 / largest)


def mean_weight(p: np.ndarray, q: np.ndarray) -> float:
  """E_q[w] = 1 − χ²(p‖q)/M."""
  return 1.0 - (np.sum(p**2 / q) - 1.0) / np.max(p / q)


def expectation(p: np.ndarray, q: np.ndarray, f: np.ndarray) -> float:
  """E_q[w f] = E_p f + (E_p f − E_p[r f])/M."""
  plain = p @ f
  return plain + (plain - p @ (p / q * f)) / np.max(p / q)


def _drawn(
    selection: str, batch: types.Terms, q: np.ndarray
) -> tuple[float, float]:
  """E_q[w f] by the library's draws, from gains and from factors of ∇log π."""
  draws, vocabulary = batch.mask.shape
  weights = jnp.broadcast_to(jnp.asarray(q) / draws, batch.mask.shape)
  gain, factors = library.gain_and_factors(
      build(selection, vocabulary), batch, weights
  )
  return float(gain), float(jnp.sum(factors))


@dataclasses.dataclass(frozen=True)
class Point:
  """One pair of distributions; what was measured of E_q[w f] and the like."""

  chi_over_m: float
  accepted: tuple[float, float]
  weight: tuple[float, float]
  grid: tuple[float, float]
  drawn: tuple[float, float, float]
  plain: tuple[float, float]
  rejection: tuple[float, float]


def point(
    p: np.ndarray, q: np.ndarray, f: np.ndarray, draws: int, key: jax.Array
) -> Point:
  """Measures one pair; (measured, expected, …) in each field."""
  batch = terms(p, q, f, draws, key)
  ratios = p / q
  accepted = np.asarray(grid_acceptance(batch))
  weights = accepted + (1.0 - accepted) * ratios
  noise = accepted * (1.0 - accepted) * ((1.0 - ratios) * q * f) ** 2 / draws
  gain, factors = _drawn("sis", batch, q)
  wanted = expectation(p, q, f)
  deviation = np.sqrt(np.sum(noise)) + 1e-12
  farther = max(gain - wanted, factors - wanted, key=abs)
  return Point(
      1.0 - mean_weight(p, q),
      (float(q @ accepted), acceptance_rate(p, q)),
      (float(q @ weights), mean_weight(p, q)),
      (float(q @ (weights * f)), wanted),
      (gain, factors, farther / deviation),
      (_drawn("none", batch, q)[0], float(p @ f)),
      (float(np.max(ratios) * (q @ (accepted * f))), float(p @ f)),
  )


def _claims(points: list[Point], draws: int) -> list[report.Claim]:
  both = lambda name: np.array([getattr(p, name)[:2] for p in points]).T
  grain = 20.0 / draws  # Width of a grid cell, times the largest r and f.
  bias = both("grid")[0] - both("plain")[1]
  errors = [abs(p.drawn[2]) for p in points]
  return [
      report.equal("acceptance rate: 1/M", *both("accepted"), grain),
      report.equal("E_q[w]: 1 − χ²/M", *both("weight"), grain),
      report.equal("E_q[w f] on a grid of uniforms", *both("grid"), grain),
      report.at_most("E_q[w f] drawn, standard errors off", errors, 5.0),
      report.equal("E_q[r f]: E_p f, unbiased", *both("plain"), 1e-12),
      report.equal(
          "M E_q[accepted f]: E_p f, unbiased", *both("rejection"), grain
      ),
      report.above(
          "SIS bias of f at the largest drift", abs(bias[-1]), 2 * grain
      ),
      report.equal("SIS bias of f without drift", bias[0], 0.0, 1e-12),
  ]


@report.in_float64
def check(
    vocabulary: int = 8, draws: int = 16_384, seed: int = 0
) -> report.Report:
  """Measures one pair of distributions per drift, sharing noise and f."""
  rng = np.random.default_rng(seed)
  logits, noise = rng.normal(size=(2, vocabulary))
  f = rng.uniform(-2.0, 2.0, vocabulary)
  q = np.exp(tabular.normalized(logits))
  keys = jax.random.split(jax.random.key(seed), len(DRIFTS))
  points = [
      point(
          np.exp(tabular.normalized(logits + drift * noise)), q, f, draws, key
      )
      for drift, key in zip(DRIFTS, keys, strict=True)
  ]
  return report.Report(_claims(points, draws), _panels(points))


def _panels(points: list[Point]) -> list[report.Panel]:
  column = lambda name, i: np.array([getattr(p, name)[i] for p in points])
  size = np.array([p.chi_over_m for p in points])
  target = column("plain", 1)
  return [
      report.Panel(
          "E_q[w] of the SIS ratio", "χ²/M",
          [report.Line("measured", size, column("weight", 0), "o"),
           report.Line("1 − χ²/M", size, 1.0 - size, "--")],
      ),
      report.Panel(
          "Bias of E[f]", "χ²/M",
          [report.Line("SIS, grid", size, column("grid", 0) - target, "o"),
           report.Line("SIS, drawn", size, column("drawn", 0) - target, "x"),
           report.Line("predicted", size, column("grid", 1) - target, "--"),
           report.Line("importance sampling", size,
                       column("plain", 0) - target, "s-"),
           report.Line("rejection sampling", size,
                       column("rejection", 0) - target, "^:")],
      ),
  ]


if __name__ == "__main__":
  sys.exit(report.main("sis_bias", check))
