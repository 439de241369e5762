"""DAPO's dynamic sampling (arXiv 2503.14476): enough groups that teach.

A group whose responses are all right or all wrong has no advantage and is not
trained on. DAPO draws batches of prompts within a step until as many groups as
it wants are left. Here a round is planned before it is generated, so the
number of prompts is a forecast: what is wanted over the share of groups that
was kept in the last round. Training drops the others
(train.keep_uniform_groups).
"""

import dataclasses
import math

import numpy as np

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys


@dataclasses.dataclass(frozen=True)
class DapoState(interface.State):
  """What the last round showed.

  Attributes:
    share: of its groups that were kept; None before the first.
    visits: int [M], rounds that posed each prompt.
  """

  share: float | None
  visits: np.ndarray


@dataclasses.dataclass(frozen=True)
class Dapo(interface.Allocator):
  """Keys of dynamic sampling; the defaults are those of DAPO's script."""

  oversampling: float = keys.key(
      3.0, "prompts of the first round per wanted group", at_least=1.0
  )
  max_batches: int = keys.key(
      10, "largest number of prompts per wanted group", at_least=1
  )

  state = DapoState

  def start(self, size: int, budget: interface.Budget, seed: int) -> DapoState:
    """Knows no share."""
    del budget, seed
    return DapoState(0, None, np.zeros(size, np.int64))

  def propose(
      self, state: DapoState, budget: interface.Budget, order: np.ndarray
  ) -> np.ndarray:
    """Poses prompts / share, the least visited first."""
    factor = float(self.oversampling)
    if state.share is not None:
      factor = 1 / state.share if state.share else math.inf
    factor = min(factor, self.max_batches)
    # A share of 1/3 wants 3 times as many, not one more by rounding.
    wanted = math.ceil(round(budget.prompts * factor, 6))
    return interface.fill(
        interface.least_visited(state.visits, order),
        budget.samples,
        wanted * budget.samples,
        len(order),
    )

  def observe(
      self, state: DapoState, outcomes: interface.Outcomes
  ) -> DapoState:
    """Measures the share of groups that were kept."""
    posed = outcomes.samples > 0
    kept = keeps(outcomes.scored, outcomes.correct)
    return DapoState(
        state.rounds_seen + 1,
        float(np.sum(kept & posed) / np.sum(posed)),
        state.visits + posed,
    )


def keeps(scored: np.ndarray, correct: np.ndarray) -> np.ndarray:
  """Tells which groups are trained on: both kinds, or a single response."""
  return ((correct > 0) & (correct < scored)) | (scored == 1)
