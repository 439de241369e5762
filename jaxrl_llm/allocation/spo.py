"""SPO's prompt sampling (arXiv 2509.13232): pose what is uncertain.

A tracker estimates each prompt's success rate p̂ = α / (α + β) with
forgetting, and a round draws its prompts, without replacement, with weights

  √(p̂ (1 − p̂)) + exploration.

A visit forgets: α ← φ α + right, β ← φ β + wrong, with
φ = 2^{−D / half_life}, cut to [forgetting_min, forgetting_max]. D is the token
mean of |Δ log π| on the prompt's previous response since it was drawn. That
would take another forward pass over old responses, so D is a number of the
configuration, `drift`.
"""

import dataclasses

import numpy as np

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys


@dataclasses.dataclass(frozen=True)
class SpoState(interface.State):
  """The trackers, and where the randomness stands.

  Attributes:
    correct: float [M], α.
    wrong: float [M], β.
    seed: of the run.
  """

  correct: np.ndarray
  wrong: np.ndarray
  seed: int


@dataclasses.dataclass(frozen=True)
class Spo(interface.Allocator):
  """Keys of SPO; the prior stands for its eight offline scores."""

  exploration: float = keys.key(0.05, "weight of any prompt", at_least=0.0)
  prior_correct: float = keys.key(4.0, "α before the first visit", above=0.0)
  prior_wrong: float = keys.key(4.0, "β before the first visit", above=0.0)
  drift: float = keys.key(0.0, "D, nats per token", at_least=0.0)
  half_life: float = keys.key(0.06, "D at which half is kept", above=0.0)
  forgetting_min: float = keys.key(
      0.875, "least φ", at_least=0.0, at_most=1.0
  )
  forgetting_max: float = keys.key(
      0.96, "largest φ", at_least=0.0, at_most=1.0
  )

  state = SpoState

  def check_budget(self, budget: interface.Budget) -> None:
    """Wants the bounds of φ in order."""
    del budget
    if self.forgetting_min > self.forgetting_max:
      raise ValueError(
          "allocation.forgetting_min: expected at most"
          f" allocation.forgetting_max = {self.forgetting_max}, found"
          f" {self.forgetting_min}; lower it."
      )

  def start(self, size: int, budget: interface.Budget, seed: int) -> SpoState:
    """Begins every tracker at the prior."""
    del budget
    return SpoState(
        0,
        np.full(size, self.prior_correct),
        np.full(size, self.prior_wrong),
        seed,
    )

  def propose(
      self, state: SpoState, budget: interface.Budget, order: np.ndarray
  ) -> np.ndarray:
    """Draws the prompts of the round by weight."""
    weights = self.weights(state.correct / (state.correct + state.wrong))
    drawn = draw(weights, budget.prompts, (state.seed, state.rounds_seen))
    return interface.fill(
        drawn, budget.samples, budget.responses, len(order)
    )

  def observe(
      self, state: SpoState, outcomes: interface.Outcomes
  ) -> SpoState:
    """Updates the trackers of the prompts that were visited."""
    visited = outcomes.scored > 0
    kept = np.where(visited, self.forgetting(self.drift), 1.0)
    return SpoState(
        state.rounds_seen + 1,
        kept * state.correct + outcomes.correct,
        kept * state.wrong + outcomes.scored - outcomes.correct,
        state.seed,
    )

  def weights(self, rates: np.ndarray) -> np.ndarray:
    """Returns √(p̂ (1 − p̂)) + exploration."""
    return np.sqrt(rates * (1 - rates)) + self.exploration

  def forgetting(self, drift: float) -> float:
    """Returns φ = 2^{−D / half_life} within its bounds."""
    kept = 2.0 ** (-drift / self.half_life)
    return float(np.clip(kept, self.forgetting_min, self.forgetting_max))


def draw(
    weights: np.ndarray, count: int, seed: tuple[int, ...]
) -> np.ndarray:
  """Draws places without replacement, each next one by weight.

  The smallest of exponential variates with these rates is the first of such a
  draw, the next smallest the second, and so on.

  Args:
    weights: ≥ 0.
    count: at most the places with a weight above 0.
    seed: names the draw.

  Returns:
    int [count].
  """
  # Raw bits are part of numpy's promise, its floats are not.
  raw = np.random.Philox(seed).random_raw(len(weights))
  uniform = ((raw >> np.uint64(11)) + 0.5) * 2.0**-53
  with np.errstate(divide="ignore"):
    arrivals = -np.log(uniform) / weights
  return np.argsort(arrivals, kind="stable")[:count]
