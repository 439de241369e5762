"""What each allocator does that the others do not."""

import hypothesis as hp
from hypothesis import strategies as st
import numpy as np
import pytest

from jaxrl_llm.allocation import cero
from jaxrl_llm.allocation import dapo
from jaxrl_llm.allocation import gvm
from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import knapsack
from jaxrl_llm.allocation import registry
from jaxrl_llm.allocation import reinforce_ada
from jaxrl_llm.allocation import spo
from jaxrl_llm.allocation import utility

SIZE = 12
BUDGET = interface.Budget(prompts=4, samples=8, rounds=6)


class TestCero:
  """What Algorithm 1 implies beyond the golden traces."""

  @hp.given(
      prices=st.floats(0, 2), rate=st.floats(0, 1), most=st.integers(1, 50)
  )
  @hp.settings(deadline=None)
  def test_best_exposure_beats_a_grid(self, prices, rate, most):
    grid = np.linspace(0, most, 101)
    value = lambda z: prices * z - utility.utility(np.array(rate), z)
    best = utility.best_exposure(prices, rate, most)
    assert 0 <= best <= most
    assert value(best) <= value(grid).min() + 1e-12

  @hp.given(st.lists(st.floats(0.01, 1), min_size=2, max_size=2, unique=True))
  @hp.settings(deadline=None)
  def test_exposure_falls_with_the_price(self, prices):
    low, high = sorted(prices)
    found = utility.best_exposure(np.array([low, high]), 0.5, 12)
    assert found[0] >= found[1]

  def test_the_surest_prompts_are_left_to_others(self):
    """With equal visits, p = 0.5 is worth more than p = 0 and p = 1."""
    rates = np.repeat([0.0, 0.5, 1.0], 4)
    draw = np.random.default_rng(2)
    allocator = registry.build({"name": "cero"})
    budget = interface.Budget(4, 4, 400)
    state = allocator.start(SIZE, budget, 0)
    exposure = np.zeros(SIZE)
    for _ in range(budget.rounds):
      counts = allocator.propose(state, budget, np.arange(SIZE))
      exposure += counts
      correct = draw.binomial(counts, rates)
      state = allocator.observe(
          state, interface.Outcomes(counts, counts, correct, np.zeros(SIZE))
      )
    means = exposure.reshape(3, 4).mean(1)
    assert means[1] > 2 * max(means[0], means[2])
    assert exposure.sum() <= budget.responses * budget.rounds

  def test_a_price_that_is_just_met_buys_nothing(self):
    allocator = cero.Cero(budget_price=4 * utility.informativeness(1.0, 1.0))
    state = allocator.start(SIZE, BUDGET, 0)
    assert not allocator.propose(state, BUDGET, np.arange(SIZE)).any()

  def test_default_capacity_is_that_of_the_paper(self):
    """128 units a round on average, 132 at most."""
    budget = interface.Budget(64, 8, 500)
    state = cero.Cero().start(100, budget, 0)
    assert (state.capacity, state.total) == (132, 64000)


class TestKnapsack:
  """More where the rewards of a group differ."""

  def brute(self, rates, total, first, most):
    best, chosen = -1.0, None
    for extra in np.ndindex(*[most + 1] * len(rates)):
      if sum(extra) == total:
        value = knapsack.value(first + np.array(extra), rates).sum()
        if value > best + 1e-15:
          best, chosen = value, extra
    return best, chosen

  @hp.given(
      rates=st.lists(st.floats(0.05, 0.95), min_size=1, max_size=3),
      total=st.integers(0, 9),
  )
  @hp.settings(deadline=None)
  def test_greedy_is_the_best_of_all(self, rates, total):
    rates = np.array(rates)
    total = min(total, 4 * len(rates))
    found = knapsack.solve(rates, total, 2, 4)
    assert found.sum() == total and found.max() <= 4
    best, _ = self.brute(rates, total, 2, 4)
    assert knapsack.value(2 + found, rates).sum() >= best - 1e-12

  def test_known_prompts_give_way_and_the_surplus_goes_to_unsolved(self):
    """p: 0, 1, ½, unknown; 4 × 8 = 32.

    Minima 2 + 2 + 2 + 8 = 14 leave 18. The effective prompt needs
    ln 0.1 / ln 0.5 = 3.3, rounded down 3; the other 15 go to p = 0.
    """
    counts = knapsack.Knapsack().share(
        np.array([0.0, 1.0, 0.5, np.nan]), BUDGET
    )
    np.testing.assert_array_equal(counts, [17, 2, 5, 8])

  def test_the_rate_is_that_of_the_newest_visits(self):
    """Buffer 16: visits of 10 and 8 are read, the older 8 are not."""
    allocator = knapsack.Knapsack()
    state = allocator.start(1, BUDGET, 0)
    for scored, correct in ((8, 8), (8, 2), (10, 1)):
      state = allocator.observe(
          state,
          interface.Outcomes(
              *(np.array([x]) for x in (scored, scored, correct)), np.zeros(1)
          ),
      )
    assert allocator.success_rates(state)[0] == pytest.approx(3 / 18)

  def test_few_rewards_are_no_knowledge(self):
    allocator = knapsack.Knapsack()
    state = allocator.observe(
        allocator.start(1, BUDGET, 0),
        interface.Outcomes(*(np.array([7]) for _ in range(3)), np.zeros(1)),
    )
    assert np.isnan(allocator.success_rates(state)[0])


class TestGvm:
  """Pilots, then what they advise, to the same prompts."""

  def test_rounds_alternate_and_nothing_goes_to_the_unsolved(self):
    allocator, order = gvm.Gvm(), np.arange(SIZE)
    state = allocator.start(SIZE, BUDGET, 0)
    pilots = allocator.propose(state, BUDGET, order)
    assert set(np.flatnonzero(pilots)) == {0, 1, 2, 3}
    correct = np.zeros(SIZE, int)
    correct[:3] = 8, 2, 2
    gradients = np.zeros(SIZE)
    gradients[:3] = 1.0, 1.0, 3.0
    state = allocator.observe(
        state, interface.Outcomes(pilots, pilots, correct, gradients)
    )
    counts = allocator.propose(state, BUDGET, order)
    assert counts[3:].sum() == 0 and counts.sum() == BUDGET.responses
    assert counts[2] > counts[1] > counts[0] > 0
    state = allocator.observe(
        state, interface.Outcomes(counts, counts, counts, np.ones(SIZE))
    )
    pilots = allocator.propose(state, BUDGET, order)
    assert set(np.flatnonzero(pilots)) == {4, 5, 6, 7}

  @hp.given(
      st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(0, 99)
  )
  @hp.settings(deadline=None)
  def test_apportioning_keeps_the_sum_within_one_unit(self, sizes, total):
    hp.assume(sum(sizes) > 1e-3)
    real = np.array(sizes) / sum(sizes) * total
    counts = gvm.apportion(real, total)
    assert counts.sum() == total and counts.min() >= 0
    assert np.abs(counts - real).max() < 1 + 1e-9


class TestReinforceAda:
  """Who lacks signal stays; who has it makes room."""

  def test_places_go_on_until_signal_or_patience_ends(self):
    allocator, order = reinforce_ada.ReinforceAda(), np.arange(SIZE)
    state = allocator.start(SIZE, BUDGET, 0)
    rates = np.zeros(SIZE)
    rates[[1, 4]] = 0.5
    seen = []
    for _ in range(5):
      counts = allocator.propose(state, BUDGET, order)
      seen.append(np.flatnonzero(counts).tolist())
      correct = (counts * rates).astype(int)
      state = allocator.observe(
          state, interface.Outcomes(counts, counts, correct, np.zeros(SIZE))
      )
    # 1 and 4 have four right and four wrong at once; 0, 2, 3 never have and
    # leave after four rounds, 5 after as many.
    assert seen == [
        [0, 1, 2, 3], [0, 2, 3, 4], [0, 2, 3, 5], [0, 2, 3, 5], [5, 6, 7, 8],
    ]

  def test_one_right_response_is_enough_for_the_positive_focused(self):
    right, wrong = np.array([1, 0]), np.array([7, 8])
    found = reinforce_ada.ReinforceAda(leave="positive_focused").has_signal(
        right, wrong
    )
    np.testing.assert_array_equal(found, [True, False])
    assert not reinforce_ada.ReinforceAda().has_signal(right, wrong).any()


class TestDapo:
  """More prompts where few groups teach."""

  @pytest.mark.parametrize(
      "kept, prompts", [(4, 4), (2, 8), (1, 12), (0, 12)]
  )
  def test_the_number_of_prompts_follows_the_share_that_was_kept(
      self, kept, prompts
  ):
    """4 wanted; of 4 posed, `kept` were mixed: 4 / (kept / 4), at most all."""
    allocator, order = dapo.Dapo(), np.arange(SIZE)
    state = allocator.start(SIZE, BUDGET, 0)
    posed = np.where(order < 4, 8, 0)
    correct = np.where(order < kept, 3, 0)
    state = allocator.observe(
        state, interface.Outcomes(posed, posed, correct, np.zeros(SIZE))
    )
    counts = allocator.propose(state, BUDGET, order)
    assert np.count_nonzero(counts) == prompts
    # Those that were not posed come first.
    assert counts[4:].all() or prompts < 8

  def test_the_first_round_oversamples(self):
    allocator = dapo.Dapo(oversampling=2.0)
    state = allocator.start(SIZE, BUDGET, 0)
    counts = allocator.propose(state, BUDGET, np.arange(SIZE))
    assert np.count_nonzero(counts) == 8


class TestSpo:
  """Prompts are drawn by weight, without replacement."""

  def test_shares_of_single_draws_are_the_weights(self):
    weights = np.array([0.35, 0.55, 0.35, 0.05])
    draws = [spo.draw(weights, 1, (0, k))[0] for k in range(4000)]
    found = np.bincount(draws, minlength=4) / len(draws)
    # 4.5 standard errors of a share of 0.42 over 4000 draws.
    np.testing.assert_allclose(found, weights / weights.sum(), atol=0.035)

  def test_a_draw_is_without_replacement_and_repeats_itself(self):
    weights = np.ones(9)
    first = spo.draw(weights, 9, (5, 0))
    assert sorted(first) == list(range(9))
    np.testing.assert_array_equal(first, spo.draw(weights, 9, (5, 0)))
    assert first.tolist() != spo.draw(weights, 9, (5, 1)).tolist()

  def test_only_a_visit_forgets(self):
    """Drift 0: φ = 0.96. 4 → 0.96 · 4 + 6 right, 0.96 · 4 + 2 wrong."""
    allocator = spo.Spo()
    state = allocator.observe(
        allocator.start(2, BUDGET, 0),
        interface.Outcomes(
            np.array([8, 0]), np.array([8, 0]), np.array([6, 0]), np.zeros(2)
        ),
    )
    np.testing.assert_allclose(state.correct, [9.84, 4])
    np.testing.assert_allclose(state.wrong, [5.84, 4])
