"""CoDaPO's re-sampling (arXiv 2606.07950): the most learnable questions again.

Every other round poses prompts by turn. The round after it spends as many
responses on the K of them with the largest value v = c (1 − 4 (d − ½)²), of
the confidence c and the difficulty d = 1 − share of right responses; ties go
to the lower place in the pool. The paper repeats a question as several groups;
here its responses of a round are one larger group.
"""

import dataclasses

import numpy as np

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys


@dataclasses.dataclass(frozen=True)
class CodapoState(interface.State):
  """What the last round showed.

  Attributes:
    values: float [M], v of what a round by turn posed, −1 of all else; empty
      where the coming round is one by turn.
  """

  values: np.ndarray


@dataclasses.dataclass(frozen=True)
class Codapo(interface.Allocator):
  """Keys of the re-sampling; K = 4 of 16 is the authors' own."""

  top_k: int = keys.key(
      4, "prompts of a round that the next one poses again", at_least=1
  )

  state = CodapoState

  def check_budget(self, budget: interface.Budget) -> None:
    """Refuses to choose more prompts than a round has."""
    if self.top_k > budget.prompts:
      raise ValueError(
          "allocation.top_k: expected at most generation.prompts_per_round ="
          f" {budget.prompts}, found {self.top_k}; lower it."
      )

  def start(
      self, size: int, budget: interface.Budget, seed: int
  ) -> CodapoState:
    """Begins with a round by turn."""
    del size, budget, seed
    return CodapoState(0, np.zeros(0))

  def propose(
      self, state: CodapoState, budget: interface.Budget, order: np.ndarray
  ) -> np.ndarray:
    """Poses prompts by turn, or those of the last round worth most."""
    counts = np.zeros(len(order), np.int64)
    if not state.values.size:
      counts[order[: budget.prompts]] = budget.samples
      return counts
    best = np.argsort(-state.values, kind="stable")[: self.top_k]
    best = best[state.values[best] >= 0]
    # B/K times each, round-robin.
    turns = np.arange(budget.prompts) % len(best)
    np.add.at(counts, best[turns], budget.samples)
    return counts

  def observe(
      self, state: CodapoState, outcomes: interface.Outcomes
  ) -> CodapoState:
    """Values the prompts of a round by turn."""
    seen = state.rounds_seen + 1
    if state.values.size:
      return CodapoState(seen, np.zeros(0))
    solved = outcomes.correct / np.maximum(outcomes.samples, 1)
    values = outcomes.confidence * (1.0 - 4.0 * (0.5 - solved) ** 2)
    return CodapoState(seen, np.where(outcomes.samples > 0, values, -1.0))
