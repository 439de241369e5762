"""CERO: where and when to allocate rollouts (arXiv 2606.05606, Algorithm 1).

Each prompt has a Beta posterior over its success rate, and a concave utility
of the rollouts that it gets over the whole run. Dual prices, one per prompt
and one for the budget, are learned by projected online gradient steps; a round
serves the prompts whose own price is above the budget's.

Prices are normalised: θ = c̄ ϑ and μ = c̄ ν with c̄ = λ / R, so ϑ and ν are in
[0, 1]. A unit is `unit` responses.
"""

import dataclasses

import numpy as np

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys
from jaxrl_llm.allocation import utility

# Capacity of a round over the mean budget of a round: 132 to 128 (App. G).
HEADROOM = 132 / 128


@dataclasses.dataclass(frozen=True)
class CeroState(interface.State):
  """Posteriors, prices and what is left.

  Attributes:
    correct: float [M], a of Beta(a, b).
    wrong: float [M], b.
    prices: float [M], ϑ.
    budget_price: ν.
    left: units of the budget that are left.
    total: B, units of the run.
    capacity: C, units of a round.
    rounds: K.
  """

  correct: np.ndarray
  wrong: np.ndarray
  prices: np.ndarray
  budget_price: float
  left: int
  total: int
  capacity: int
  rounds: int


@dataclasses.dataclass(frozen=True)
class Cero(interface.Allocator):
  """Keys of CERO; the defaults are those of App. G."""

  unit: int = keys.key(4, "responses per unit", at_least=1)
  unit_limit: int = keys.key(2, "units of a prompt in a round", at_least=1)
  capacity: int | None = keys.key(None, "units of a round", at_least=1)
  curvature: float = keys.key(1.0, "λ of the utility", above=0.0)
  forgetting: float = keys.key(
      1.0, "share of the evidence kept per round", above=0.0, at_most=1.0
  )
  prior_correct: float = keys.key(1.0, "a of the prior", above=0.0)
  prior_wrong: float = keys.key(1.0, "b of the prior", above=0.0)
  budget_price: float = keys.key(
      0.5, "ν of the first round", at_least=0.0, at_most=1.0
  )
  price_step: float | None = keys.key(None, "γ of ϑ", above=0.0)
  budget_step: float | None = keys.key(None, "γ of ν", above=0.0)

  state = CeroState

  def check_budget(self, budget: interface.Budget) -> None:
    """Wants a whole number of units, and 0 < B ≤ K C."""
    if budget.responses % self.unit:
      raise ValueError(
          f"allocation.unit: expected a divisor of the {budget.responses}"
          f" responses of a round, found {self.unit}; change it or"
          " generation.samples_per_prompt."
      )
    mean = budget.responses // self.unit
    if self.capacity is not None and self.capacity < mean:
      raise ValueError(
          f"allocation.capacity: expected at least the {mean} units of a"
          f" round's budget, found {self.capacity}; raise it or leave it unset."
      )

  def smallest_group(self, budget: interface.Budget) -> tuple[str, int]:
    """A prompt that is served gets a unit at least."""
    del budget
    return "allocation.unit", self.unit

  def start(
      self, size: int, budget: interface.Budget, seed: int
  ) -> CeroState:
    """Fixes K, B and C; ϑ is 4 q̂ of the prior."""
    del seed
    mean = budget.responses // self.unit
    correct = np.full(size, self.prior_correct)
    wrong = np.full(size, self.prior_wrong)
    return CeroState(
        rounds_seen=0,
        correct=correct,
        wrong=wrong,
        prices=4 * utility.informativeness(correct, wrong),
        budget_price=self.budget_price,
        left=mean * budget.rounds,
        total=mean * budget.rounds,
        capacity=self.capacity or max(mean, round(HEADROOM * mean)),
        rounds=budget.rounds,
    )

  def propose(
      self, state: CeroState, budget: interface.Budget, order: np.ndarray
  ) -> np.ndarray:
    """Serves by margin ϑ − ν > 0, within capacity and the budget left.

    The budget and the turn of the prompts do not enter: both were fixed at
    the start. Equal margins go to the lower index.
    """
    del budget, order
    units = np.minimum(state.capacity, state.left)
    return self.unit * self._serve(state, int(units))

  def observe(
      self, state: CeroState, outcomes: interface.Outcomes
  ) -> CeroState:
    """Updates the posteriors of all prompts, then the prices.

    The dual steps use the proposal before it is cut to the budget left, and
    ϑ of before with q̂ of after.
    """
    size = len(state.prices)
    share = state.total / size
    slope = self.curvature / share
    mean = state.total / state.rounds
    proposed = self._serve(state, state.capacity)
    correct = self._posterior(
        state.correct, self.prior_correct, outcomes.correct
    )
    wrong = self._posterior(
        state.wrong, self.prior_wrong, outcomes.scored - outcomes.correct
    )
    rates = 4 * slope * utility.informativeness(correct, wrong)
    wanted = utility.best_exposure(
        slope * state.prices, rates, state.rounds * self.unit_limit
    )
    default_step = 1 / np.sqrt(state.rounds)
    price_step = self.price_step or default_step
    budget_step = self.budget_step or default_step
    excess = (proposed - wanted / state.rounds) / self.unit_limit
    surplus = (mean - proposed.sum()) / max(mean, state.capacity - mean)
    return dataclasses.replace(
        state,
        rounds_seen=state.rounds_seen + 1,
        correct=correct,
        wrong=wrong,
        prices=np.clip(state.prices - price_step * excess, 0.0, 1.0),
        budget_price=float(
            np.clip(state.budget_price - budget_step * surplus, 0.0, 1.0)
        ),
        left=state.left - int(outcomes.samples.sum()) // self.unit,
    )

  def _serve(self, state: CeroState, units: int) -> np.ndarray:
    """Returns int [M], units: in order of margin up to `units` in all."""
    margins = state.prices - state.budget_price
    ranked = np.argsort(-margins, kind="stable")
    eligible = ranked[margins[ranked] > 0]
    return interface.fill(eligible, self.unit_limit, units, len(margins))

  def _posterior(
      self, counts: np.ndarray, prior: float, new: np.ndarray
  ) -> np.ndarray:
    """Forgets a part of the evidence, sampled or not, then adds: eq. 5."""
    return prior + self.forgetting * (counts - prior) + new
