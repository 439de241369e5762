"""GVM-RAFT (arXiv 2505.02391): rollouts against the variance of the gradient.

  n_i ∝ G_i / √(p_i + α / p_i^{β − 1}),  0 where p_i = 0 or G_i = 0,

p the share of right pilot responses, G the mean over them of a norm of
∇ log π(response). Rounds alternate: a round of pilots, equally many for each
prompt, then a round that gives the same prompts what the pilots advise. Both
are trained on.

The paper takes G over the embedding table. Feedback carries a norm over the
logits instead (see training/feedback.py), which costs no backward pass.
"""

import dataclasses

import numpy as np

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys


@dataclasses.dataclass(frozen=True)
class GvmState(interface.State):
  """What the last round's pilots showed; zeros after any other round.

  Attributes:
    rates: float [M], p.
    gradients: float [M], G.
    visits: int [M], pilot rounds of each prompt.
  """

  rates: np.ndarray
  gradients: np.ndarray
  visits: np.ndarray


@dataclasses.dataclass(frozen=True)
class Gvm(interface.Allocator):
  """Keys of GVM; α and β are those of the paper."""

  unit: int = keys.key(4, "responses per unit; 1 is GVM-RAFT", at_least=1)
  rate_penalty: float = keys.key(1e-3, "α", at_least=0.0)
  rate_power: float = keys.key(2.0, "β", at_least=1.0)

  state = GvmState

  def check_budget(self, budget: interface.Budget) -> None:
    """Wants a whole number of units."""
    if budget.responses % self.unit:
      raise ValueError(
          f"allocation.unit: expected a divisor of the {budget.responses}"
          f" responses of a round, found {self.unit}; change it or"
          " generation.samples_per_prompt."
      )

  def smallest_group(self, budget: interface.Budget) -> tuple[str, int]:
    """A prompt that is served gets a unit at least."""
    del budget
    return "allocation.unit", self.unit

  def start(self, size: int, budget: interface.Budget, seed: int) -> GvmState:
    """Begins with pilots."""
    del budget, seed
    return GvmState(
        0, np.zeros(size), np.zeros(size), np.zeros(size, np.int64)
    )

  def propose(
      self, state: GvmState, budget: interface.Budget, order: np.ndarray
  ) -> np.ndarray:
    """Allocates after pilots; else poses the least visited as pilots.

    Pilots without a right response advise nothing: new ones follow.
    """
    ratio = self.ratio(state.rates, state.gradients)
    if ratio.any():
      units = budget.responses // self.unit
      return self.unit * apportion(ratio * units, units)
    return interface.fill(
        interface.least_visited(state.visits, order),
        budget.samples,
        budget.responses,
        len(order),
    )

  def observe(
      self, state: GvmState, outcomes: interface.Outcomes
  ) -> GvmState:
    """Keeps the outcomes of pilots, and forgets them after their use."""
    if self.ratio(state.rates, state.gradients).any():
      nothing = np.zeros(len(state.rates))
      return dataclasses.replace(
          state,
          rounds_seen=state.rounds_seen + 1,
          rates=nothing,
          gradients=nothing,
      )
    return GvmState(
        state.rounds_seen + 1,
        outcomes.correct / np.maximum(outcomes.scored, 1),
        outcomes.gradients,
        state.visits + (outcomes.samples > 0),
    )

  def ratio(self, rates: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Returns each prompt's share of the budget; all 0 if none is advised."""
    counts = (rates > 0) & (gradients > 0)
    safe = np.where(counts, rates, 1.0)
    penalty = self.rate_penalty / safe ** (self.rate_power - 1)
    sizes = np.where(counts, gradients / np.sqrt(safe + penalty), 0.0)
    return sizes / sizes.sum() if counts.any() else sizes


def apportion(real: np.ndarray, total: int) -> np.ndarray:
  """Rounds to integers that sum to `total`.

  Each is rounded to the nearest; the remainder goes to, or comes from, those
  that rounding moved most the other way. Equal ones: the lower index first.
  """
  counts = np.rint(real).astype(np.int64)
  error = total - int(counts.sum())
  residuals = (real - counts) * np.sign(error)
  moved = np.argsort(-residuals, kind="stable")[: abs(error)]
  counts[moved] += np.sign(error)
  return counts
