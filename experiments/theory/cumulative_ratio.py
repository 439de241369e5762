"""Prefix ratios against token and sequence ratios, by listing all responses.

Command: .venv/bin/python -m experiments.theory.cumulative_ratio
  [--png=runs/theory/cumulative_ratio.png]
Hardware: 1 CPU core, seconds.
Expect: every line `ok`; exit code 1 when a statement fails.

Statements (CTPO, arXiv 2605.07331), with samples of μ and a policy π:
  Prop. 1: E_μ[r_{1:t} ∇log π_t Q^π_t] = E_π[∇log π_t Q^π_t] at every position;
    with the token ratio r_t in its place the term is biased from t = 2 on.
  Prop. 2: Var r_{1:t} < Var r_{1:T} for t < T, whatever the policies; so is
    the variance of the gradient term; Var r_{1:t} = Π_{j≤t}(1 + χ²_j) − 1 where
    tokens are independent.
  With the reward of the response in place of Q^π, the suffix stays that of μ:
    the term is E_μ[r_{1:t} ∇log π_t Q^μ_t].
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory import library
from experiments.theory import report
from experiments.theory import tabular
from jaxrl_llm.losses import algorithms

EXACT = 1e-12  # Rounding of float64 sums over all responses.
RATIOS = {
    "token": {"ratio": "token"},
    "prefix": {"ratio": "cumulative"},
    # The detached weight gives each token its own ∇log π_t.
    "sequence": {"ratio": "sequence", "surrogate": "weighted_log_prob"},
}


def factors(
    ratio: str,
    behavior: np.ndarray,
    live: np.ndarray,
    signal: np.ndarray | float,
    everything: tabular.Responses,
) -> np.ndarray:
  """Ratio × signal in front of ∇log π_t of each response, from the library."""
  spec = algorithms.build({
      "name": "ppo", "anchor": "behavior", "trust_region": "none",
      "aggregation": "token-sum", **RATIOS[ratio],
  })
  batch = tabular.terms(behavior, live, signal, everything)
  ones = jnp.ones(everything.tokens.shape)
  return np.asarray(library.gain_and_factors(spec, batch, ones)[1])


def scores(live: np.ndarray, everything: tabular.Responses) -> np.ndarray:
  """∇log π_t by the logits of its state: 1[token] − π(·|s_t), [N, T, V]."""
  own = np.eye(everything.vocabulary)[everything.tokens]
  return own - np.exp(live)[everything.states]


def expected_terms(
    weights: np.ndarray,
    coefficients: np.ndarray,
    live: np.ndarray,
    everything: tabular.Responses,
) -> np.ndarray:
  """Σ_y weights × factor × ∇log π_t at each position, [T, S, V]."""
  length = everything.tokens.shape[1]
  size = (length, everything.state_count, everything.vocabulary)
  result = np.zeros(size)
  weighted = (weights[:, None] * coefficients)[..., None]
  weighted = weighted * scores(live, everything)
  np.add.at(result, (np.arange(length), everything.states), weighted)
  return result


def term_variances(
    weights: np.ndarray,
    coefficients: np.ndarray,
    live: np.ndarray,
    everything: tabular.Responses,
) -> np.ndarray:
  """Total variance of factor × ∇log π_t at each position, [T]."""
  squares = np.sum(scores(live, everything) ** 2, axis=-1) * coefficients**2
  means = expected_terms(weights, coefficients, live, everything)
  return weights @ squares - np.sum(means**2, axis=(1, 2))


def independent_variances(
    behavior: np.ndarray, live: np.ndarray
) -> np.ndarray:
  """Prop. 2 without dependence: Π_{j≤t}(1 + χ²_j) − 1 from [T, V]."""
  chi_squares = np.sum(np.exp(2 * live - behavior), axis=1) - 1.0
  return np.cumprod(1.0 + chi_squares) - 1.0


def objective_gradient(
    live: np.ndarray, outcomes: np.ndarray, everything: tabular.Responses
) -> np.ndarray:
  """∇J(π) by the logits, by differentiating Σ_y π(y) R(y), [S, V]."""

  def value(logits):
    table = jax.nn.log_softmax(logits)
    chances = jnp.exp(jnp.sum(tabular.pick(table, everything), axis=1))
    return jnp.sum(chances * outcomes)

  return np.asarray(jax.jit(jax.grad(value))(jnp.asarray(live)))


def _gradient_claims(
    errors: dict[str, np.ndarray],
    total: np.ndarray,
    wanted: np.ndarray,
    reward_gap: np.ndarray,
) -> list[report.Claim]:
  return [
      report.equal(
          "prefix ratio × Q^π, summed over t: entry of ∇J(π)",
          total, wanted, EXACT,
      ),
      report.at_most("prefix ratio: bias at any t", errors["prefix"], EXACT),
      report.at_most("sequence ratio: bias, any t", errors["sequence"], EXACT),
      report.at_most("token ratio: bias at t = 1", errors["token"][0], EXACT),
      report.above("token ratio: bias at t ≥ 2", errors["token"][1:], 1e-3),
      report.at_most(
          "prefix ratio × R against Q^μ: gap at any t", reward_gap, EXACT
      ),
  ]


def _independent(
    rng: np.random.Generator, everything: tabular.Responses
) -> tuple[np.ndarray, np.ndarray]:
  """(measured, expected) Var r_{1:t} where tokens ignore their prefix."""
  length = everything.tokens.shape[1]
  depth = np.zeros(everything.state_count, int)
  depth[everything.states] = np.arange(length)
  rows = [
      tabular.normalized(rng.normal(size=(length, everything.vocabulary)))
      for _ in range(2)
  ]
  tables = [row[depth] for row in rows]
  values = factors("prefix", *tables, 1.0, everything)
  weights = tabular.probabilities(tables[0], everything)
  return _variances(weights, values), independent_variances(*rows)


def _variances(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
  return weights @ values**2 - (weights @ values) ** 2


@report.in_float64
def check(vocabulary: int = 3, length: int = 6, seed: int = 0) -> report.Report:
  """Compares the three ratios on one random pair of policies."""
  rng = np.random.default_rng(seed)
  everything = tabular.responses(vocabulary, length)
  behavior = tabular.policy(rng, everything)
  live = tabular.normalized(behavior + 0.5 * rng.normal(size=behavior.shape))
  outcomes = rng.normal(size=len(everything.tokens))
  sampled = tabular.probabilities(behavior, everything)
  wanted = tabular.probabilities(live, everything)
  values = tabular.action_values(wanted, outcomes, everything)
  terms = lambda w, f: expected_terms(w, f, live, everything)
  exact = terms(wanted, values)

  found = {
      name: factors(name, behavior, live, values, everything)
      for name in RATIOS
  }
  errors = {
      name: np.linalg.norm(terms(sampled, f) - exact, axis=(1, 2))
      for name, f in found.items()
  }
  spread = {
      name: term_variances(sampled, f, live, everything)
      for name, f in found.items()
  }
  plain = {
      name: _variances(sampled, factors(name, behavior, live, 1.0, everything))
      for name in RATIOS
  }
  rewarded = factors("prefix", behavior, live, outcomes[:, None], everything)
  earlier = tabular.action_values(sampled, outcomes, everything)
  suffix = factors("prefix", behavior, live, earlier, everything)
  reward_gap = np.linalg.norm(
      terms(sampled, rewarded) - terms(sampled, suffix), axis=(1, 2)
  )
  claims = _gradient_claims(
      errors,
      np.sum(terms(sampled, found["prefix"]), axis=0),
      objective_gradient(live, outcomes, everything),
      reward_gap,
  )
  claims += [
      report.above(
          "Var r_{1:T} − Var r_{1:t}, t < T",
          (plain["sequence"] - plain["prefix"])[:-1], 0.0,
      ),
      report.above(
          "variance of the term, sequence − prefix, t < T",
          (spread["sequence"] - spread["prefix"])[:-1], 0.0,
      ),
      report.equal(
          "Var r_{1:t} of independent tokens",
          *_independent(rng, everything), 1e-10,
      ),
  ]
  return report.Report(claims, _panels(errors, spread))


def _panels(
    errors: dict[str, np.ndarray], spread: dict[str, np.ndarray]
) -> list[report.Panel]:
  positions = np.arange(1, len(errors["token"]) + 1)
  styles = {"token": "o--", "prefix": "o-", "sequence": "o:"}
  curves = lambda values: [
      report.Line(f"{name} ratio", positions, values[name], style)
      for name, style in styles.items()
  ]
  return [
      report.Panel(
          "Bias of the gradient term at position t (norm)", "t", curves(errors)
      ),
      report.Panel(
          "Total variance of the gradient term at position t", "t",
          curves(spread), y_scale="log",
      ),
  ]


if __name__ == "__main__":
  sys.exit(report.main("cumulative_ratio", check))
