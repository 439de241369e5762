"""DPPO's prompt level (arXiv 2603.04135): prompts pruned by their history.

A prompt of the coming round whose mean |A| at its last visit was low is left
out with probability r, and weighs 1 / (1 − r) where it stays. A round divides
by what is left of it, so all weights are multiplied by that share: then the
expected mean over prompts is that of the round without pruning. A
reconstruction; the published account does not give the rule in full.
"""

import dataclasses

import numpy as np

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys


@dataclasses.dataclass(frozen=True)
class DppoState(interface.State):
  """What the last visits showed.

  Attributes:
    sizes: float [M], mean |A| at the last visit; −1 of what was never posed.
    seed: of the draws.
  """

  sizes: np.ndarray
  seed: int


@dataclasses.dataclass(frozen=True)
class DppoPruning(interface.Allocator):
  """Keys of the pruning."""

  prune_probability: float = keys.key(
      0.5,
      "r, with which a prompt below the threshold is left out",
      at_least=0.0,
      at_most=0.99,
  )
  prune_threshold: float | None = keys.key(
      None,
      "mean |A| of a prompt's last visit below which that happens; unset: the"
      " mean over the round's prompts that were posed before",
      at_least=0.0,
  )

  state = DppoState
  weighs = True

  def start(
      self, size: int, budget: interface.Budget, seed: int
  ) -> DppoState:
    """Knows no prompt, and so keeps all."""
    del budget
    return DppoState(0, np.full(size, -1.0), seed)

  def propose(
      self, state: DppoState, budget: interface.Budget, order: np.ndarray
  ) -> np.ndarray:
    """Poses the round's prompts by turn less what is pruned."""
    turn = order[: budget.prompts]
    draws = np.random.default_rng([state.seed & (2**63 - 1), state.rounds_seen])
    chances = draws.random(len(order))
    kept = ~self.low(state, turn) | (chances[turn] >= self.prune_probability)
    counts = np.zeros(len(order), np.int64)
    counts[turn[kept]] = budget.samples
    return counts

  def loss_weights(
      self, state: DppoState, budget: interface.Budget, order: np.ndarray
  ) -> np.ndarray:
    """1 / P(it stays) × share of the round that stays, float [M]."""
    turn = order[: budget.prompts]
    kept = self.propose(state, budget, order)[turn] > 0
    result = np.ones(len(order))
    result[turn] = np.mean(kept)
    result[turn[self.low(state, turn)]] /= 1.0 - self.prune_probability
    return result

  def low(self, state: DppoState, turn: np.ndarray) -> np.ndarray:
    """bool: which of some prompts are below the threshold."""
    sizes = state.sizes[turn]
    known = sizes >= 0
    threshold = self.prune_threshold
    if threshold is None:
      threshold = sizes[known].mean() if known.any() else 0.0
    return known & (sizes < threshold)

  def observe(
      self, state: DppoState, outcomes: interface.Outcomes
  ) -> DppoState:
    """Keeps the mean |A| of what was posed."""
    sizes = np.where(outcomes.samples > 0, outcomes.sizes, state.sizes)
    return dataclasses.replace(
        state, rounds_seen=state.rounds_seen + 1, sizes=sizes
    )
