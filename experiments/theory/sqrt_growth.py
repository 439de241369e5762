"""How far the cumulative log-ratio strays, and what bounds follow it.

Command: .venv/bin/python -m experiments.theory.sqrt_growth
  [--png=runs/theory/sqrt_growth.png]
Hardware: 1 CPU core, under a minute.
Expect: every line `ok`; exit code 1 when a statement fails.

Statement (CTPO, arXiv 2605.07331): c_t = Σ_{j≤t} log(π_j/μ_j) has standard
deviation σ √t, so bounds of ε √t cut about the same share of tokens at every
position, while fixed bounds cut ever more.

Responses of a Markov chain over S states are drawn from μ; π is μ with noise on
its logits, scaled to σ ≈ 0.0335 nats, what the paper fitted early in training.
σ and the drift E c_t = −t KL(μ‖π) follow from the tables, not from the sample.
The drift is why the share is only nearly constant: it shifts c_t by about
−σ² t/2, which the prediction holds, as a normal share of both signs of A.
"""

import dataclasses
import sys

import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.theory import library
from experiments.theory import report
from experiments.theory import tabular
from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective

SIGMA = 0.0335
GROWING = {"name": "ctpo"}
FIXED = {"name": "ctpo", "power": 0.0}
# Positions from which a sum of table entries is close to normal.
FIRST = 16


@dataclasses.dataclass(frozen=True)
class Chain:
  """Two policies over S states.

  Attributes:
    behavior: log μ, [S, V].
    live: log π, [S, V].
    after: int [S, V], state that follows a token.
    stationary: [S], share of time that μ spends in each state.
  """

  behavior: np.ndarray
  live: np.ndarray
  after: np.ndarray
  stationary: np.ndarray

  @property
  def drift(self) -> float:
    """KL(μ‖π) of one token, nats."""
    gaps = self.behavior - self.live
    return float(self.stationary @ np.sum(np.exp(self.behavior) * gaps, axis=1))

  @property
  def sigma(self) -> float:
    """Standard deviation of one log-ratio given its state, nats."""
    chances, gaps = np.exp(self.behavior), self.live - self.behavior
    means = np.sum(chances * gaps, axis=1)
    squares = np.sum(chances * gaps**2, axis=1)
    return float(np.sqrt(self.stationary @ (squares - means**2)))


def chain(rng: np.random.Generator, states: int, vocabulary: int) -> Chain:
  """A random chain whose σ is close to SIGMA."""
  behavior = tabular.normalized(rng.normal(size=(states, vocabulary)))
  noise = rng.normal(size=behavior.shape)
  after = rng.integers(states, size=behavior.shape)
  moves = np.zeros((states, states))
  np.add.at(moves, (np.arange(states)[:, None], after), np.exp(behavior))
  stationary = np.full(states, 1.0 / states)
  for _ in range(500):
    stationary = stationary @ moves
  scaled = lambda s: Chain(
      behavior, tabular.normalized(behavior + s * noise), after, stationary
  )
  return scaled(SIGMA**2 / scaled(SIGMA).sigma)


def sample(
    rng: np.random.Generator, pair: Chain, count: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws responses from μ: (log μ, log π) of their tokens, [N, T]."""
  limits = np.cumsum(np.exp(pair.behavior), axis=1)[:, :-1]
  state = rng.choice(len(limits), size=count, p=pair.stationary)
  recorded = np.empty((2, count, length))
  for t in range(length):
    token = np.sum(rng.random((count, 1)) > limits[state], axis=1)
    recorded[0, :, t] = pair.behavior[state, token]
    recorded[1, :, t] = pair.live[state, token]
    state = pair.after[state, token]
  return recorded[0], recorded[1]


def spread(sigma: float, positions: np.ndarray) -> np.ndarray:
  """The statement: σ √t."""
  return sigma * np.sqrt(positions)


def bounds(spec: objective.Spec, positions: np.ndarray) -> np.ndarray:
  """Log bounds (−ε_lo t^p, ε_hi t^p), [2, T]."""
  region = spec.trust_region
  edges = np.array([[-region.log_clip_low], [region.log_clip_high]])
  return edges * positions**region.power


def predicted_share(
    pair: Chain, spec: objective.Spec, positions: np.ndarray
) -> np.ndarray:
  """Normal share beyond the bounds, half of the responses with A > 0, [T]."""
  scale = spread(pair.sigma, positions)
  low, high = (bounds(spec, positions) + pair.drift * positions) / scale
  return 0.5 * (stats.norm.cdf(low) + stats.norm.sf(high))


def exponent(positions: np.ndarray, deviations: np.ndarray) -> float:
  """p of the least-squares fit deviation ∝ t^p."""
  return float(np.polyfit(np.log(positions), np.log(deviations), 1)[0])


def _claims(
    pair: Chain,
    positions: np.ndarray,
    moments: np.ndarray,
    shares: np.ndarray,
    predictions: np.ndarray,
    count: int,
) -> list[report.Claim]:
  means, deviations = moments
  noise = 5.0 / np.sqrt(count)  # Five standard errors of a unit deviation.
  late = slice(FIRST - 1, None)
  growing, fixed = shares[:, late]
  scale = spread(pair.sigma, positions)
  agreement = np.mean(growing) / np.mean(predictions[0, late])
  return [
      report.equal("std of c_t / (σ √t)", deviations / scale, 1.0, noise),
      report.equal(
          "fitted exponent of the std", exponent(positions, deviations), 0.5,
          noise,
      ),
      report.equal(
          "(E c_t + t KL) / (σ √t)",
          (means + pair.drift * positions) / scale, 0.0, noise,
      ),
      report.equal(
          f"clip share, √t bounds, t ≥ {FIRST}", growing,
          predictions[0, late], noise / 2 + 0.02,
      ),
      report.equal(
          f"clip share, fixed bounds, t ≥ {FIRST}", fixed,
          predictions[1, late], noise / 2 + 0.02,
      ),
      report.equal(
          "mean share over prediction, √t bounds", agreement, 1.0, 0.1
      ),
      report.equal(
          "late share / share at t = 1, √t bounds", _rise(shares[0]), 1.0, 0.4
      ),
      report.above(
          "late share / share at t = 1, fixed bounds", _rise(shares[1]), 2.0
      ),
  ]


def _rise(shares: np.ndarray) -> float:
  """Share over the last eighth of the positions / at the first."""
  return float(np.mean(shares[-(len(shares) // 8) :]) / shares[0])


@report.in_float64
def check(
    count: int = 20_000, length: int = 256, seed: int = 0
) -> report.Report:
  """Measures spread and clip shares of one random chain."""
  rng = np.random.default_rng(seed)
  pair = chain(rng, states=64, vocabulary=16)
  behavior, live = sample(rng, pair, count, length)
  signs = np.where(np.arange(count) % 2, 1.0, -1.0)
  batch = types.Terms(
      mask=jnp.ones(live.shape, bool),
      advantages=jnp.asarray(np.repeat(signs[:, None], length, axis=1)),
      proximal_logprobs=jnp.asarray(behavior),
      logprobs=jnp.asarray(live),
  )
  positions = np.arange(1.0, length + 1.0)
  specs = [algorithms.build(words) for words in (GROWING, FIXED)]
  (sums, region), (_, other) = (library.verdict(s, batch) for s in specs)
  sums = np.asarray(sums)
  moments = np.stack([sums.mean(axis=0), sums.std(axis=0)])
  shares = np.stack(
      [1.0 - np.mean(r.active, axis=0) for r in (region, other)]
  )
  predictions = np.stack(
      [predicted_share(pair, spec, positions) for spec in specs]
  )
  claims = _claims(pair, positions, moments, shares, predictions, count)
  deviations = moments[1]
  return report.Report(claims, [
      report.Panel(
          "Standard deviation of c_t (nats)", "t",
          [report.Line("measured", positions, deviations),
           report.Line("σ √t", positions, spread(pair.sigma, positions), "--")],
          "log", "log",
      ),
      report.Panel(
          "Share of tokens beyond the bounds", "t",
          [report.Line("√t bounds", positions, shares[0]),
           report.Line("fixed bounds", positions, shares[1]),
           report.Line("normal prediction, √t", positions, predictions[0],
                       "--"),
           report.Line("normal prediction, fixed", positions, predictions[1],
                       "--")],
      ),
  ])


if __name__ == "__main__":
  sys.exit(report.main("sqrt_growth", check))
