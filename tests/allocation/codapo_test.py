"""CoDaPO's re-sampling: every other round, the most learnable questions."""

import golden_test
import numpy as np
import pytest

from jaxrl_llm.allocation import codapo
from jaxrl_llm.allocation import interface
from jaxrl_llm.curation import confidence

SELECTION = golden_test.GOLDEN["codapo_selection"]["cases"]
BUDGET = interface.Budget(prompts=8, samples=4, rounds=4)
SIZE = 10
ORDER = np.array([3, 1, 4, 0, 5, 9, 2, 6, 7, 8])


def observed(allocator, solved, sureness):
  """The state after a first round in which each prompt of 0 … 7 was posed."""
  samples = np.where(np.arange(SIZE) < 8, 4, 0)
  return allocator.observe(
      allocator.start(SIZE, BUDGET, 0),
      interface.Outcomes(samples, samples, solved, np.zeros(SIZE), sureness),
  )


@pytest.mark.parametrize("case", SELECTION)
def test_golden_selection(case):
  """The value is that weight where half the responses are right: v = c."""
  golden = SELECTION[case]
  allocator = codapo.Codapo(top_k=2)
  sureness = np.array([*golden["weights"], 0.0, 0.0])
  state = observed(allocator, np.full(SIZE, 2), sureness)
  counts = allocator.propose(state, BUDGET, ORDER)
  assert np.flatnonzero(counts).tolist() == golden["exact_topk2"]
  # B/K times each: eight prompts' responses on two.
  assert counts[counts > 0].tolist() == [16, 16]


def test_rounds_by_turn_and_again_alternate():
  allocator = codapo.Codapo(top_k=3)
  state = allocator.start(SIZE, BUDGET, 0)
  by_turn = np.where(np.isin(np.arange(SIZE), ORDER[:8]), 4, 0)
  np.testing.assert_array_equal(
      allocator.propose(state, BUDGET, ORDER), by_turn
  )
  sureness = np.linspace(0.1, 0.8, SIZE)
  solved = np.array([0, 1, 2, 3, 4, 2, 1, 0, 2, 2])
  state = observed(allocator, solved, sureness)
  wanted = [confidence.value(c, s / 4) for c, s in zip(sureness, solved)]
  np.testing.assert_allclose(state.values[:8], wanted[:8])
  counts = allocator.propose(state, BUDGET, ORDER)
  # Of 8 and 9, which the round did not pose, nothing is known.
  assert np.flatnonzero(counts).tolist() == [2, 5, 6]
  assert counts.sum() == BUDGET.responses and counts[5] == 12
  again = allocator.observe(
      state, interface.Outcomes(counts, counts, counts, counts, sureness)
  )
  np.testing.assert_array_equal(
      allocator.propose(again, BUDGET, ORDER), by_turn
  )


def test_more_than_a_round_has_is_refused():
  with pytest.raises(ValueError, match="allocation.top_k: expected at most"):
    codapo.Codapo(top_k=9).check_budget(BUDGET)
