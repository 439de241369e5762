"""Reinforce-Ada (arXiv 2510.04996): sample a prompt until it has its signal.

A prompt is sampled a few times per round of sampling and leaves when it has
enough right and wrong responses, or after `max_repeats` rounds. In the paper
the rounds of sampling follow each other within one step of training. Here one
is a round of the run, so that between two of them the policy is trained: a
prompt that lacks signal keeps its place in the next round, and one that leaves
makes room for the next by turn.

Of the responses of a round, `group` enter the update, half of each kind, and
with objective.advantage=group_mean the mean of all of them is their baseline.
"""

import dataclasses

import numpy as np

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys


@dataclasses.dataclass(frozen=True)
class ReinforceAdaState(interface.State):
  """The visits that are not over yet.

  Attributes:
    correct: int [M], right responses of the visit.
    wrong: int [M], the others with a reward.
    repeats: int [M], rounds of the visit; 0 where there is none.
    visits: int [M], visits that were begun.
  """

  correct: np.ndarray
  wrong: np.ndarray
  repeats: np.ndarray
  visits: np.ndarray


@dataclasses.dataclass(frozen=True)
class ReinforceAda(interface.Allocator):
  """Keys of Reinforce-Ada; the defaults are those of its recipe."""

  group: int = keys.key(4, "responses that enter the update", at_least=2)
  max_repeats: int = keys.key(4, "rounds of a prompt at most", at_least=1)
  leave: str = keys.key(
      "balanced",
      "when a prompt has its signal",
      choices=("balanced", "positive_focused"),
  )

  state = ReinforceAdaState

  @property
  def group_limit(self) -> int:
    """Down-samples to `group`."""
    return self.group

  def start(
      self, size: int, budget: interface.Budget, seed: int
  ) -> ReinforceAdaState:
    """No prompt is being sampled."""
    del budget, seed
    empty = np.zeros(size, np.int64)
    return ReinforceAdaState(0, empty, empty, empty, empty)

  def propose(
      self,
      state: ReinforceAdaState,
      budget: interface.Budget,
      order: np.ndarray,
  ) -> np.ndarray:
    """Gives the places to those that lack signal, then to the least visited."""
    staying = order[state.repeats[order] > 0]
    others = order[state.repeats[order] == 0]
    queue = np.concatenate(
        [staying, interface.least_visited(state.visits, others)]
    )
    return interface.fill(
        queue, budget.samples, budget.responses, len(order)
    )

  def observe(
      self, state: ReinforceAdaState, outcomes: interface.Outcomes
  ) -> ReinforceAdaState:
    """Counts on, and lets go whom the exit condition or patience releases."""
    sampled = outcomes.samples > 0
    correct = state.correct + outcomes.correct
    wrong = state.wrong + outcomes.scored - outcomes.correct
    repeats = state.repeats + sampled
    leaving = self.has_signal(correct, wrong) | (repeats >= self.max_repeats)
    return ReinforceAdaState(
        state.rounds_seen + 1,
        np.where(leaving, 0, correct),
        np.where(leaving, 0, wrong),
        np.where(leaving, 0, repeats),
        state.visits + (sampled & (state.repeats == 0)),
    )

  def has_signal(self, correct: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Tells who may leave: half a group of each kind, or one right response."""
    if self.leave == "positive_focused":
      return correct >= 1
    half = self.group / 2
    return (correct >= half) & (wrong >= half)
