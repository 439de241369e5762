"""What every allocator promises, over random histories of feedback."""

import json

import hypothesis as hp
from hypothesis import strategies as st
import numpy as np
import pytest

from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import registry

SIZE = 12
BUDGET = interface.Budget(prompts=4, samples=8, rounds=6)
# The proposal of these sums to the budget of a round, whatever they saw.
EXACT = ("uniform", "knapsack", "gvm", "reinforce_ada", "spo")
everything = pytest.mark.parametrize("name", registry.REGISTRY)


def play(name, draw, rounds=BUDGET.rounds, rates=None):
  """Runs an allocator on simulated prompts; yields (state, counts)."""
  allocator = registry.build({"name": name})
  rates = draw.random(SIZE) if rates is None else rates
  state = allocator.start(SIZE, BUDGET, seed=3)
  for _ in range(rounds):
    counts = allocator.propose(state, BUDGET, draw.permutation(SIZE))
    yield allocator, state, counts
    state = allocator.observe(state, outcomes(counts, rates, draw))


def outcomes(counts, rates, draw):
  scored = draw.binomial(counts, 0.9)
  correct = draw.binomial(scored, rates)
  gradients = np.where(correct, draw.random(len(counts)) + 0.1, 0.0)
  return interface.Outcomes(
      counts, scored, correct, gradients, *draw.random((2, len(counts)))
  )


@everything
@hp.given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from([0, 1, 2]))
@hp.settings(deadline=None, max_examples=25)
def test_counts_are_counts_and_sum_to_what_is_promised(name, seed, kind):
  draw = np.random.default_rng(seed)
  rates = [None, np.zeros(SIZE), np.ones(SIZE)][kind]
  spent = 0
  for number, (allocator, state, counts) in enumerate(
      play(name, draw, rates=rates)
  ):
    assert counts.shape == (SIZE,) and counts.dtype.kind == "i"
    assert counts.min() >= 0 and state.rounds_seen == number
    key, smallest = allocator.smallest_group(BUDGET)
    assert counts[counts > 0].min(initial=10**6) >= smallest, key
    spent += counts.sum()
    if name in EXACT:
      assert counts.sum() == BUDGET.responses
  if name == "cero":
    assert spent <= BUDGET.responses * BUDGET.rounds


@everything
def test_a_proposal_depends_on_the_saved_state_alone(name):
  """Asked twice, and after a way through JSON, it answers the same."""
  for allocator, state, counts in play(name, np.random.default_rng(1)):
    text = json.dumps(interface.to_json(state))
    again = interface.from_json(allocator.state, json.loads(text))
    assert json.dumps(interface.to_json(again)) == text
    order = np.arange(SIZE)
    np.testing.assert_array_equal(
        allocator.propose(state, BUDGET, order),
        allocator.propose(again, BUDGET, order),
    )


def test_outcomes_are_read_by_prompt_and_strangers_left_out():
  names = (
      "prompt_id", "samples", "scored", "correct", "mean_gradient",
      "confidence", "mean_abs_advantage",
  )
  groups = [
      dict(zip(names, values, strict=True))
      for values in (
          (7, 4, 3, 1, 0.5, 0.2, 0.9),
          (9, 2, 2, 2, 1.5, 0.3, 0.0),
          (1, 9, 9, 9, 9.0, 0.9, 9.0),
      )
  ]
  found = interface.Outcomes.of(groups, [9, 8, 7])
  np.testing.assert_array_equal(found.samples, [2, 0, 4])
  np.testing.assert_array_equal(found.scored, [2, 0, 3])
  np.testing.assert_array_equal(found.correct, [2, 0, 1])
  np.testing.assert_array_equal(found.gradients, [1.5, 0, 0.5])
  np.testing.assert_array_equal(found.confidence, [0.3, 0, 0.2])
  np.testing.assert_array_equal(found.sizes, [0, 0, 0.9])


def test_uniform_poses_those_whose_turn_it_is():
  order = np.random.default_rng(0).permutation(SIZE)
  allocator = registry.build({"name": "uniform"})
  counts = allocator.propose(interface.State(0), BUDGET, order)
  assert set(np.flatnonzero(counts)) == set(order[:4])
  assert set(counts[order[:4]]) == {8}


class TestKeys:
  """A key that is not read, or holds what it may not, is named."""

  @pytest.mark.parametrize(
      "keys, words",
      [
          ({"name": "cerro"}, "allocation.name.*'cero'"),
          ({"name": "uniform", "unit": 4}, "allocation.unit.*Uniform"),
          (
              {"name": "cero", "half_life": 0.1},
              "allocation.half_life.*does not read it.*nearest",
          ),
          ({"name": "cero", "forgetting": 0.0}, "allocation.forgetting.*> 0"),
          ({"name": "cero", "forgetting": 1.1}, "allocation.forgetting.*<= 1"),
          ({"name": "gvm", "unit": 2.5}, "allocation.unit.*int"),
          ({"name": "knapsack", "cost": "x"}, "allocation.cost.*expectation"),
          ({"name": "cero", "curvature": float("nan")}, "curvature.*finite"),
      ],
  )
  def test_one_line_names_it(self, keys, words):
    with pytest.raises(ValueError, match=words) as error:
      registry.build(keys)
    assert "\n" not in str(error.value)

  @pytest.mark.parametrize(
      "keys, words",
      [
          ({"name": "cero", "unit": 5}, "allocation.unit"),
          ({"name": "cero", "capacity": 3}, "allocation.capacity"),
          ({"name": "gvm", "unit": 5}, "allocation.unit"),
          ({"name": "knapsack", "min_samples": 9}, "allocation.min_samples"),
          ({"name": "knapsack", "max_samples": 7}, "allocation.max_samples"),
          ({"name": "spo", "forgetting_min": 0.99}, "forgetting_min"),
      ],
  )
  def test_a_budget_that_does_not_fit_is_refused(self, keys, words):
    with pytest.raises(ValueError, match=words):
      registry.build(keys).check_budget(BUDGET)

  def test_an_integer_does_for_a_float(self):
    assert registry.build({"name": "cero", "curvature": 2}).curvature == 2.0

  @everything
  def test_the_defaults_are_allowed_and_described(self, name):
    allocator = registry.build({"name": name})
    allocator.check_budget(BUDGET)
    assert name in registry.describe(name, allocator)
    assert f"`{name}`" in registry.table()
