"""Theorem 1 of CPPO against the worst policies and rewards it allows.

Command: .venv/bin/python -m experiments.theory.prefix_budget
  [--png=runs/theory/prefix_budget.png]
Hardware: 1 CPU core, under a minute.
Expect: every line `ok`; exit code 1 when a statement fails.

Statements (CPPO, arXiv 2606.10968), |R| ≤ ξ, D the total variation:
  J(π) − J(μ) = L' − Δ with L' = E_μ[R Σ (ρ_t − 1)] and
    Δ = E_μ[R Σ_t (ρ_t − 1)(1 − ρ_{t+1:T})].
  Theorem 1: where ω_t D_t ≤ c_t, and Σ_{j≤m} ω_j D_j ≤ δ_b W_m for all m < T,
    Δ ≤ 2 ξ T (T − 1) ℓ̄ δ_b with ℓ̄ = max c_t / ω_t = δ / ω_min.
  This has no slack: budgets of Eq 8 start with δ to spend, may break the bound,
    and stay within 4 ξ ℓ̄ (T − 1) δ of it (Prop. 8).
  The bound of a uniform threshold is 2 ξ T (T − 1) δ²; CPPO's is tighter
    exactly when δ_b < δ ω_min.

Policies spend what they may at every prefix, by moving probability between two
tokens; the reward is ξ times the sign of what multiplies it in Δ, the worst
there is. For T = 2 the bounds are attained, so no smaller constant would do.
"""

import dataclasses
import sys

import jax.numpy as jnp
import numpy as np

from experiments.theory import library
from experiments.theory import report
from experiments.theory import saturation
from experiments.theory import tabular
from jaxrl_llm.losses import algorithms

XI = 2.0
NEAR = 1e-7


def penalty(length: int, reach: float, rate: float) -> float:
  """2 ξ T (T − 1) ℓ̄ δ_b."""
  return 2.0 * XI * length * (length - 1) * reach * rate


def slack_penalty(length: int, reach: float, delta: float) -> float:
  """Prop. 8: what the δ that a prefix may spend at once adds."""
  return 4.0 * XI * reach * (length - 1) * delta


def second_order(
    behavior: np.ndarray, live: np.ndarray, everything: tabular.Responses
) -> np.ndarray:
  """Σ_t (ρ_t − 1)(1 − ρ_{t+1:T}) of each response, [N]."""
  gaps = tabular.pick(live, everything) - tabular.pick(behavior, everything)
  suffixes = np.cumsum(gaps[:, ::-1], axis=1)[:, ::-1] - gaps
  return np.sum(np.expm1(gaps) * -np.expm1(suffixes), axis=1)


def first_order(
    behavior: np.ndarray,
    live: np.ndarray,
    outcomes: np.ndarray,
    everything: tabular.Responses,
) -> float:
  """L' = E_μ[R Σ (ρ_t − 1)] by the library's unclipped objective."""
  spec = algorithms.build({
      "name": "ppo", "anchor": "behavior", "trust_region": "none",
      "aggregation": "token-sum",
  })
  weights = tabular.probabilities(behavior, everything)[:, None]
  weights = jnp.asarray(np.broadcast_to(weights, everything.tokens.shape))
  gain = lambda table: library.gain_and_factors(
      spec, tabular.terms(behavior, table, outcomes[:, None], everything),
      weights,
  )[0]
  return float(gain(live) - gain(behavior))


def improvement(
    behavior: np.ndarray,
    live: np.ndarray,
    outcomes: np.ndarray,
    everything: tabular.Responses,
) -> float:
  """J(π) − J(μ)."""
  chances = [tabular.probabilities(p, everything) for p in (live, behavior)]
  return float((chances[0] - chances[1]) @ outcomes)


def shortfall(
    behavior: np.ndarray, live: np.ndarray, everything: tabular.Responses
) -> float:
  """L' − (J(π) − J(μ)) = Δ for the worst reward of size ξ."""
  outcomes = XI * np.sign(second_order(behavior, live, everything))
  return first_order(behavior, live, outcomes, everything) - improvement(
      behavior, live, outcomes, everything
  )


def _identity_gap(rng: np.random.Generator, length: int) -> float:
  """J(π) − J(μ) − (L' − Δ) of random policies and rewards."""
  everything = tabular.responses(saturation.VOCABULARY, length)
  pair = [tabular.policy(rng, everything) for _ in range(2)]
  outcomes = rng.uniform(-XI, XI, len(everything.tokens))
  chances = tabular.probabilities(pair[0], everything)
  delta = chances @ (outcomes * second_order(*pair, everything))
  return improvement(*pair, outcomes, everything) - (
      first_order(*pair, outcomes, everything) - delta
  )


@dataclasses.dataclass(frozen=True)
class Trial:
  """One saturated policy of `length` tokens.

  Attributes:
    length: T.
    shortfall: Δ under the worst reward.
    bound: of Theorem 1, ℓ̄ as the library's budgets have it.
    slack: what Prop. 8 adds.
    reach: ℓ̄.
    excess: largest of ω_t D_t − c_t, and of S_m − δ_b W_m over m < T.
    cut: tokens that the region cuts.
  """

  length: int
  shortfall: float
  bound: float
  slack: float
  reach: float
  excess: float
  cut: int


def attempt(
    rng: np.random.Generator, length: int, region: saturation.Region,
    limits: saturation.Limits,
) -> Trial:
  """Saturates the limits from a random μ and measures what comes of it."""
  everything = tabular.responses(saturation.VOCABULARY, length)
  behavior = tabular.policy(rng, everything)
  live = saturation.saturated(rng, region, behavior, everything, limits)
  spent, cut = saturation.spend(region, behavior, live, everything)
  reach = float(np.max(spent.budgets / spent.position_weights))
  balance = spent.costs - region.delta_b * spent.position_weights
  over = np.cumsum(balance, axis=1)[:, :-1]
  return Trial(
      length,
      shortfall(behavior, live, everything),
      penalty(length, reach, region.delta_b),
      slack_penalty(length, reach, region.delta),
      reach,
      float(max(np.max(spent.costs - spent.budgets), np.max(over))),
      int(np.sum(cut)),
  )


def misjudged(rng: np.random.Generator) -> int:
  """Grid points where the worst cases do not order as δ_b and δ ω_min do."""
  wrong = 0
  for omega_min in (0.6, 0.8, 1.0):
    for share in (0.25, 0.9, 1.0, 1.1):
      region = saturation.Region(0.15, 0.15 * omega_min * share, omega_min)
      if region.delta_b > region.delta:
        continue
      budget, uniform = (
          attempt(rng, 2, region, limits).shortfall
          for limits in (saturation.theorem_limits, saturation.uniform_limits)
      )
      tighter = budget < uniform * (1.0 - NEAR)
      wrong += tighter != (region.delta_b < region.delta * omega_min - NEAR)
  return wrong


def _claims(
    region: saturation.Region,
    identity: list[float],
    within: list[Trial],
    full: list[Trial],
    eager: list[Trial],
    wrong: int,
) -> list[report.Claim]:
  pairs = [t.shortfall / t.bound for t in full if t.length == 2]
  return [
      report.equal("J(π) − J(μ) − (L' − Δ)", identity, 0.0, 1e-12),
      report.at_most(
          "largest breach of the conditions", [t.excess for t in within], 0.0
      ),
      report.equal(
          "tokens cut within the conditions", [t.cut for t in within], 0, 0.5
      ),
      report.equal(
          "ℓ̄ = max c_t / ω_t, which is δ / ω_min",
          [t.reach for t in within], region.delta / region.omega_min, NEAR,
      ),
      report.at_most(
          "Δ / bound, T ≥ 2", [t.shortfall / t.bound for t in within], 1.0
      ),
      report.equal("Δ / bound at T = 2: attained", pairs, 1.0, NEAR),
      report.above(
          "largest Δ / bound with the slack of Eq 8",
          max(t.shortfall / t.bound for t in eager), 1.0,
      ),
      report.at_most(
          "Δ / (bound + slack) under Eq 8",
          [t.shortfall / (t.bound + t.slack) for t in eager], 1.0,
      ),
      report.equal(
          "grid points where tighter ≠ (δ_b < δ ω_min)", wrong, 0, 0.5
      ),
  ]


@report.in_float64
def check(
    longest: int = 6, repeats: int = 10, seed: int = 0
) -> report.Report:
  """Tries `repeats` random pairs of each length."""
  rng = np.random.default_rng(seed)
  region = saturation.Region()
  lengths = np.repeat(np.arange(2, longest + 1), repeats)
  identity = [_identity_gap(rng, int(length)) for length in lengths]
  full, frugal, eager = (
      [attempt(rng, int(length), region, limits) for length in lengths]
      for limits in (
          saturation.theorem_limits,
          saturation.frugal_limits,
          saturation.eager_limits,
      )
  )
  claims = _claims(
      region, identity, full + frugal, full, eager, misjudged(rng)
  )
  pick = lambda trials, part: np.array([part(t) for t in trials])
  bound = pick(full, lambda t: t.bound)
  uniform = pick(
      full, lambda t: penalty(t.length, region.delta, region.delta)
  )
  lines = [
      ("Δ within the conditions", pick(full, lambda t: t.shortfall), "o"),
      ("Δ under Eq 8", pick(eager, lambda t: t.shortfall), "x"),
      ("bound of Theorem 1", bound, "-"),
      ("bound with slack (Prop. 8)",
       bound + pick(full, lambda t: t.slack), "--"),
      ("bound of a uniform δ", uniform, ":"),
  ]
  return report.Report(claims, [report.Panel(
      "L' − (J(π) − J(μ)) under the worst reward", "T",
      [report.Line(label, lengths, y, style) for label, y, style in lines],
      y_scale="log",
  )])


if __name__ == "__main__":
  sys.exit(report.main("prefix_budget", check))
