"""Measures how CERO's regret falls with the length of a run, and its pacing.

Command: .venv/bin/python experiments/cero/simulate.py [--folder=runs/cero]
  [--seeds=3]
Hardware: 1 CPU core, no accelerator, about a minute.
Expect: prompts with known success rates and B / (K M) = 0.5 units: the slope
  of log(Reg / M) on log K is at most −0.4 over K = 100 … 10 000 (Theorem 1 of
  2606.05606: −½), that of uniform and random allocation about 0. Shorter runs
  show from which K on CERO is ahead of them. At the paper's scale: a peak
  surplus of 1 920 responses, 480 to 495 updates, and 3 to 5 visits per prompt.
  Exit code 1 when one of these fails; a picture lies in the folder.

Reg is Σ U(q, z) of the best exposures in hindsight less that of the exposures
given, at the true q = p (1 − p).
"""

import argparse
from collections.abc import Callable
import pathlib
import sys

import matplotlib
import numpy as np

from jaxrl_llm.allocation import cero
from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import utility

PROMPTS = 100  # M
MEAN_UNITS = 50  # B / K, so B / (K M) = 0.5
# K: the slope is fitted from FITTED on, the crossover sought from the first.
ROUNDS = (2, 4, 8, 16, 32, 64, 100, 215, 464, 1000, 2154, 4642, 10_000)
FITTED = ROUNDS.index(100)
ALLOCATOR = cero.Cero()
# M is inferred: 2 units · k / R = 0.84 at k = 3 gives R = 7.14.
PAPER_PROMPTS = 8958
PAPER_BUDGET = interface.Budget(prompts=64, samples=8, rounds=500)


def play(
    rates: np.ndarray, budget: interface.Budget, draw: np.random.Generator
) -> np.ndarray:
  """Runs CERO on prompts that are solved with fixed probabilities.

  Returns:
    int [K, M], units given in each round.
  """
  size = len(rates)
  state = ALLOCATOR.start(size, budget, 0)
  order, nothing = np.arange(size), np.zeros(size)
  given = np.zeros((budget.rounds, size), np.int16)
  for number in range(budget.rounds):
    counts = ALLOCATOR.propose(state, budget, order)
    given[number] = counts // ALLOCATOR.unit
    correct = draw.binomial(counts, rates)
    state = ALLOCATOR.observe(
        state, interface.Outcomes(counts, counts, correct, nothing)
    )
  return given


def by_cero(
    rates: np.ndarray, rounds: int, draw: np.random.Generator
) -> np.ndarray:
  """Returns the exposures that CERO gives, units."""
  budget = interface.Budget(MEAN_UNITS, ALLOCATOR.unit, rounds)
  return play(rates, budget, draw).sum(0, dtype=np.int64)


def by_turn(
    rates: np.ndarray, rounds: int, draw: np.random.Generator
) -> np.ndarray:
  """Returns equal exposures, units."""
  del draw
  return np.full(len(rates), MEAN_UNITS * rounds / len(rates))


def at_random(
    rates: np.ndarray, rounds: int, draw: np.random.Generator
) -> np.ndarray:
  """Returns the exposures of as many units for prompts drawn anew, units.

  A round draws prompts without replacement and gives each its most units.
  """
  exposure = np.zeros(len(rates))
  for _ in range(rounds):
    served = draw.permutation(len(rates))[: MEAN_UNITS // ALLOCATOR.unit_limit]
    exposure[served] += ALLOCATOR.unit_limit
  return exposure


def regret(
    allocate: Callable[..., np.ndarray], rounds: int, seed: int
) -> float:
  """Returns Reg / M of one run."""
  # The rates are the same for all K: quantiles of the uniform distribution.
  rates = (np.arange(PROMPTS) + 0.5) / PROMPTS
  total = MEAN_UNITS * rounds
  slopes = 4 * ALLOCATOR.curvature * rates * (1 - rates) * PROMPTS / total
  best = utility.best_in_hindsight(
      slopes, total, rounds * ALLOCATOR.unit_limit
  )
  exposure = allocate(rates, rounds, np.random.default_rng((seed, rounds)))
  gains = [utility.utility(slopes, z).sum() for z in (best, exposure)]
  return float(gains[0] - gains[1]) / PROMPTS


def slope(values: np.ndarray) -> float:
  """Fits log(Reg / M) against log K over K = 100 … 10 000."""
  logs = np.log(ROUNDS[FITTED:]), np.log(values[FITTED:])
  return float(np.polyfit(*logs, 1)[0])


def crossover(values: np.ndarray, others: np.ndarray) -> float:
  """Returns the first K from which on `values` stay below `others`."""
  behind = np.flatnonzero(values >= others)
  first = behind[-1] + 1 if behind.size else 0
  return ROUNDS[first] if first < len(ROUNDS) else np.inf


def study_regret(seeds: int) -> tuple[dict[str, np.ndarray], bool]:
  """Measures the three curves; returns them, and whether CERO's falls."""
  names = {"cero": by_cero, "uniform": by_turn, "random": at_random}
  curves = {
      name: np.array([
          np.mean([regret(allocate, k, seed) for seed in range(seeds)])
          for k in ROUNDS
      ])
      for name, allocate in names.items()
  }
  print(f"Reg / M over K = {', '.join(map(str, ROUNDS))}, {seeds} seeds:")
  for name, values in curves.items():
    shown = " ".join(f"{value:.5f}" for value in values)
    print(f"  {name:<8}{shown}  slope {slope(values):+.3f}")
  good = slope(curves["cero"]) <= -0.4
  print(
      f"slope of cero: expected at most -0.4, measured"
      f" {slope(curves['cero']):+.3f}: {'ok' if good else 'FAILED'}"
  )
  for name in ("uniform", "random"):
    found = crossover(curves["cero"], curves[name])
    print(f"cero is ahead of {name} from K = {found:.0f} on")
  return curves, good


def study_pacing(seed: int) -> tuple[np.ndarray, bool]:
  """Runs the paper's scale; returns its cumulative surplus, and the verdict."""
  draw = np.random.default_rng(seed)
  given = play(draw.random(PAPER_PROMPTS), PAPER_BUDGET, draw)
  spent = ALLOCATOR.unit * given.sum(1, dtype=np.int64)
  surplus = np.cumsum(spent - PAPER_BUDGET.responses)
  visits = np.count_nonzero(given, axis=0)
  updates = int(np.count_nonzero(spent))
  shares = np.bincount(visits) / len(visits)
  checks = (
      ("peak surplus, responses", "1920", surplus.max(),
       surplus.max() == 1920),
      ("updates", "about 487 (480 to 495)", updates, 480 <= updates <= 495),
      ("visits per prompt", "3 to 5", f"{visits.min()} to {visits.max()}",
       visits.min() == 3 and visits.max() == 5),
      ("responses", "256000", spent.sum(), spent.sum() == 256_000),
  )
  for name, expected, found, good in checks:
    verdict = "ok" if good else "FAILED"
    print(f"{name}: expected {expected}, measured {found}: {verdict}")
  print("share of prompts by visits: " + ", ".join(
      f"{k}: {share:.1%}" for k, share in enumerate(shares) if share
  ) + " (published 3: 57.5%, 4: 27.8%, 5: 14.7%)")
  return surplus, all(good for *_, good in checks)


def draw_picture(
    curves: dict[str, np.ndarray], surplus: np.ndarray, path: pathlib.Path
) -> None:
  """Draws both studies side by side."""
  matplotlib.use("Agg")
  from matplotlib import pyplot  # Only after the backend is chosen.

  figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
  for name, values in curves.items():
    left.loglog(ROUNDS, values, "o-", label=f"{name} ({slope(values):+.2f})")
  left.set_xlabel("rounds K")
  left.set_ylabel("regret per prompt")
  left.legend(title="slope")
  right.plot(np.arange(1, len(surplus) + 1), surplus)
  right.set_xlabel("round")
  right.set_ylabel("responses ahead of the mean pace")
  figure.tight_layout()
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=120)


def main() -> int:
  """Runs both studies; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--folder", type=pathlib.Path, default="runs/cero")
  parser.add_argument("--seeds", type=int, default=3)
  arguments = parser.parse_args()
  curves, falls = study_regret(arguments.seeds)
  surplus, paced = study_pacing(0)
  path = arguments.folder / "cero.png"
  draw_picture(curves, surplus, path)
  print(f"picture: {path}")
  return 0 if falls and paced else 1


if __name__ == "__main__":
  sys.exit(main())
