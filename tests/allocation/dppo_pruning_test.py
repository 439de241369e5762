"""DPPO's prompt level: what is pruned, what it weighs, that it is unbiased."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxrl_llm.allocation import dppo_pruning
from jaxrl_llm.allocation import interface

BUDGET = interface.Budget(prompts=4, samples=8, rounds=4)
SIZE = 6
ORDER = np.array([2, 0, 5, 3, 1, 4])
SIZES = np.array([0.2, 0.9, 1.0, -1.0, 0.3, 0.1])
PART = dppo_pruning.DppoPruning(prune_probability=0.6)
STATE = dppo_pruning.DppoState(3, SIZES, 7)


def test_without_history_every_prompt_is_posed_and_weighs_one():
  state = PART.start(SIZE, BUDGET, 7)
  counts = PART.propose(state, BUDGET, ORDER)
  assert np.flatnonzero(counts).tolist() == [0, 2, 3, 5]
  assert set(counts[counts > 0]) == {8}
  assert PART.loss_weights(state, BUDGET, ORDER).tolist() == [1.0] * SIZE


def test_low_are_known_prompts_below_the_mean_of_the_round():
  """Of sizes 1, 0.2, 0.1 and unknown: mean 1.3 / 3."""
  turn = ORDER[:4]
  assert PART.low(STATE, turn).tolist() == [False, True, True, False]
  fixed = dataclasses.replace(PART, prune_threshold=0.15)
  assert fixed.low(STATE, turn).tolist() == [False, False, True, False]


def test_every_choice_together_is_the_round_without_pruning(monkeypatch):
  """Σ P(choice) mean over what stays of weight × x = mean of x."""
  values = np.array([0.7, -1.1, 2.3, 0.4, 5.0, 6.0])
  expected = 0.0
  for first, second in itertools.product((True, False), repeat=2):
    kept = {0: first, 5: second}
    draws = np.array([1.0 if kept.get(k, False) else 0.0 for k in range(SIZE)])

    class Draws:
      def random(self, size):
        return draws[:size]

    monkeypatch.setattr(np.random, "default_rng", lambda key: Draws())
    counts = PART.propose(STATE, BUDGET, ORDER)
    weights = PART.loss_weights(STATE, BUDGET, ORDER)
    posed = np.flatnonzero(counts)
    assert {0, 5} & set(posed) == {k for k, stays in kept.items() if stays}
    probability = np.prod([0.4 if stays else 0.6 for stays in kept.values()])
    expected += probability * np.mean(weights[posed] * values[posed])
  assert expected == pytest.approx(values[ORDER[:4]].mean(), abs=1e-9)


def test_draws_follow_seed_and_round_alone():
  proposals = [
      PART.propose(dataclasses.replace(STATE, rounds_seen=k), BUDGET, ORDER)
      for k in range(40)
  ]
  again = PART.propose(dataclasses.replace(STATE, rounds_seen=3), BUDGET, ORDER)
  np.testing.assert_array_equal(again, proposals[3])
  share = np.mean([counts[0] > 0 for counts in proposals])
  assert 0.2 < share < 0.65
  assert all(counts[2] and counts[3] for counts in proposals)


def test_a_visit_replaces_what_was_known():
  samples = np.array([8, 0, 8, 8, 0, 0])
  outcomes = interface.Outcomes(
      samples, samples, samples, np.zeros(SIZE),
      sizes=np.array([0.5, 9.0, 0.0, 0.4, 9.0, 9.0]),
  )
  found = PART.observe(STATE, outcomes)
  assert found.sizes.tolist() == [0.5, 0.9, 0.0, 0.4, 0.3, 0.1]
  assert found.rounds_seen == 4
