"""The same number of rollouts for each prompt, whose turn comes in passes."""

import dataclasses

import numpy as np

from jaxrl_llm.allocation import interface


@dataclasses.dataclass(frozen=True)
class Uniform(interface.Allocator):
  """Poses the prompts of the round by turn; reads no feedback."""

  learns = False

  def start(
      self, size: int, budget: interface.Budget, seed: int
  ) -> interface.State:
    """Has nothing to remember."""
    del size, budget, seed
    return interface.State(0)

  def propose(
      self,
      state: interface.State,
      budget: interface.Budget,
      order: np.ndarray,
  ) -> np.ndarray:
    """Gives `budget.samples` to each of the first `budget.prompts`."""
    del state
    return interface.fill(
        order, budget.samples, budget.responses, len(order)
    )

  def observe(
      self, state: interface.State, outcomes: interface.Outcomes
  ) -> interface.State:
    """Only counts the round."""
    del outcomes
    return interface.State(state.rounds_seen + 1)
