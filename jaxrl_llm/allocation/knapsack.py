"""Knapsack RL (arXiv 2509.25849): more rollouts where they pay.

A prompt with success rate p that gets N rollouts is worth

  value(N, p) = (1 − p^N − (1 − p)^N) p (1 − p)²:

the probability that the rewards of the group differ, times what such a group
teaches. The prompts of a round share its budget so that the sum is largest.
"""

import dataclasses
import heapq

import numpy as np

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys


@dataclasses.dataclass(frozen=True)
class KnapsackState(interface.State):
  """The newest visits of each prompt.

  Attributes:
    scored: int [M, visits], rewards of each visit, the newest first.
    correct: int [M, visits], those that were right.
  """

  scored: np.ndarray
  correct: np.ndarray


@dataclasses.dataclass(frozen=True)
class Knapsack(interface.Allocator):
  """Keys of Knapsack RL; the defaults are those of its recipe."""

  min_samples: int = keys.key(2, "responses of 0 < p < 1 at least", at_least=1)
  max_samples: int = keys.key(128, "responses of a prompt at most", at_least=1)
  negative_samples: int = keys.key(2, "responses where p = 0", at_least=1)
  positive_samples: int = keys.key(2, "responses where p = 1", at_least=1)
  reward_buffer: int = keys.key(16, "newest rewards behind p", at_least=1)
  min_buffer: int = keys.key(8, "rewards from which p is known", at_least=1)
  cost: str = keys.key(
      "probability",
      "rollouts that an effective prompt needs",
      choices=("probability", "expectation"),
  )
  confidence: float = keys.key(
      0.9, "of unequal rewards, for cost=probability", above=0.0, at_most=0.999
  )

  state = KnapsackState

  def check_budget(self, budget: interface.Budget) -> None:
    """Wants every number of a prompt within those of a group."""
    for name in ("min_samples", "negative_samples", "positive_samples"):
      if getattr(self, name) > budget.samples:
        raise ValueError(
            f"allocation.{name}: expected at most"
            f" generation.samples_per_prompt = {budget.samples}, found"
            f" {getattr(self, name)}; lower it."
        )
    if self.max_samples < budget.samples:
      raise ValueError(
          "allocation.max_samples: expected at least"
          f" generation.samples_per_prompt = {budget.samples}, found"
          f" {self.max_samples}; raise it."
      )

  def smallest_group(self, budget: interface.Budget) -> tuple[str, int]:
    """The least of the three minima."""
    del budget
    names = ("min_samples", "negative_samples", "positive_samples")
    name = min(names, key=lambda name: getattr(self, name))
    return f"allocation.{name}", getattr(self, name)

  def start(
      self, size: int, budget: interface.Budget, seed: int
  ) -> KnapsackState:
    """Knows no prompt; keeps visits for as many rewards as are read."""
    del budget, seed
    smallest = min(
        self.min_samples, self.negative_samples, self.positive_samples
    )
    empty = np.zeros((size, -(-self.reward_buffer // smallest)), np.int64)
    return KnapsackState(0, empty, empty)

  def propose(
      self,
      state: KnapsackState,
      budget: interface.Budget,
      order: np.ndarray,
  ) -> np.ndarray:
    """Shares the budget among the prompts of the round by turn."""
    posed = order[: budget.prompts]
    rates = self.success_rates(state)[posed]
    counts = np.zeros(len(order), np.int64)
    counts[posed] = self.share(rates, budget)
    return counts

  def observe(
      self, state: KnapsackState, outcomes: interface.Outcomes
  ) -> KnapsackState:
    """Puts the visits of the round in front."""
    new = outcomes.scored > 0
    return KnapsackState(
        state.rounds_seen + 1,
        _pushed(state.scored, outcomes.scored, new),
        _pushed(state.correct, outcomes.correct, new),
    )

  def success_rates(self, state: KnapsackState) -> np.ndarray:
    """Returns float [M], p over the newest visits; nan where unknown.

    Visits are taken, whole ones, until they hold `reward_buffer` rewards.
    """
    before = np.cumsum(state.scored, axis=1) - state.scored
    read_mask = before < self.reward_buffer
    scored = np.sum(state.scored, axis=1, where=read_mask)
    correct = np.sum(state.correct, axis=1, where=read_mask)
    known_mask = scored >= self.min_buffer
    return np.where(known_mask, correct / np.maximum(scored, 1), np.nan)

  def share(self, rates: np.ndarray, budget: interface.Budget) -> np.ndarray:
    """Returns int [n], responses for n prompts that sum to n × samples.

    Unknown prompts get the usual number, solved and unsolved ones their own
    minimum; the rest is the knapsack's. What is more than the effective
    prompts need goes to unsolved ones, without any to the other non-effective.

    Args:
      rates: p of each prompt, nan where unknown.
      budget: of the run.
    """
    unsolved, solved = rates == 0, rates == 1
    effective = (rates > 0) & (rates < 1)
    counts = np.full(len(rates), budget.samples)
    counts[effective] = self.min_samples
    counts[unsolved] = self.negative_samples
    counts[solved] = self.positive_samples
    left = len(rates) * budget.samples - int(counts.sum())
    others = unsolved if unsolved.any() else ~effective
    needed = left
    if others.any():
      costs = np.minimum(self.max_samples, self.costs(rates[effective]))
      needed = min(left, int(np.sum(np.floor(costs))))
    extra = solve(
        rates[effective],
        needed,
        self.min_samples,
        self.max_samples - self.min_samples,
    )
    counts[effective] += extra
    receivers = others if others.any() else effective
    counts[receivers] += evenly(left - int(extra.sum()), receivers.sum())
    return counts

  def costs(self, rates: np.ndarray) -> np.ndarray:
    """Returns the rollouts until rewards differ, where 0 < p < 1.

    Either as many as make that likely, ln(1 − confidence) / ln max(p, 1 − p),
    or their expectation, 1 / (p (1 − p)) − 1.
    """
    if self.cost == "expectation":
      return 1 / (rates * (1 - rates)) - 1
    return np.log(1 - self.confidence) / np.log(np.maximum(rates, 1 - rates))


def value(samples: np.ndarray, rates: np.ndarray) -> np.ndarray:
  """Returns (1 − p^N − (1 − p)^N) p (1 − p)²."""
  mixed = 1 - rates**samples - (1 - rates) ** samples
  return mixed * rates * (1 - rates) ** 2


def solve(
    rates: np.ndarray, total: int, first: int, most: int
) -> np.ndarray:
  """Returns the units on top of `first` that maximise Σ value.

  The value is concave in N: p^N and (1 − p)^N are convex. So the best next
  unit is the one with the largest gain, and no table over budgets is needed.
  Equal gains go to the lower index.

  Args:
    rates: p, in (0, 1).
    total: units, fewer are given only when all are at `most`.
    first: rollouts that each has already.
    most: units of one prompt.
  """
  counts = np.zeros(len(rates), np.int64)

  def gain(index: int) -> tuple[float, int]:
    samples = first + counts[index]
    more, now = (value(n, rates[index]) for n in (samples + 1, samples))
    return now - more, index

  heap = [gain(index) for index in range(len(rates) if most else 0)]
  heapq.heapify(heap)
  while heap and total:
    _, index = heapq.heappop(heap)
    counts[index] += 1
    total -= 1
    if counts[index] < most:
      heapq.heappush(heap, gain(index))
  return counts


def evenly(total: int, parts: int) -> np.ndarray:
  """Returns int [parts] that sum to `total`, the first ones by one larger."""
  return total // parts + (np.arange(parts) < total % parts)


def _pushed(
    history: np.ndarray, values: np.ndarray, new: np.ndarray
) -> np.ndarray:
  """Puts a column in front where `new`; the oldest falls out there."""
  moved = np.concatenate([values[:, None], history[:, :-1]], axis=1)
  return np.where(new[:, None], moved, history)
