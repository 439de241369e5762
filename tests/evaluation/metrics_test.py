"""Metrics of problems and intervals over problems."""

import json
import math
import pathlib

import numpy as np
import pytest

from jaxrl_llm.evaluation import metrics

GOLDEN = json.loads(
    (pathlib.Path(__file__).parents[1] / "golden" / "data.json").read_text()
)["golden"]
NAN = math.nan


def test_golden_vote_match_and_any():
  golden = GOLDEN["ippo_metrics"]
  scores = [
      [float(sample == gold) for sample in samples]
      for gold, samples in zip(golden["gold"], golden["samples"])
  ]
  votes = map(metrics.majority_vote, golden["samples"], scores)
  assert np.mean(list(votes)) == golden["majority_vote"]
  match = list(map(metrics.exact_match, scores))
  assert np.mean(match) == golden["exact_match"]
  assert np.mean(list(map(metrics.any_correct, scores))) == golden["pass_at_K"]


@pytest.mark.parametrize("case", GOLDEN["pass_at_k"])
def test_golden_pass_at_k(case):
  value = metrics.pass_at_k(case["n"], case["c"], case["k"])
  assert value == pytest.approx(case["value"], abs=1e-15)


def test_pass_at_k_is_the_mean_over_subsets():
  # Of {wrong, wrong, right}, the pairs with the right one are 2 of 3.
  assert metrics.pass_at_k(3, 1, 2) == pytest.approx(2 / 3)
  assert math.isnan(metrics.pass_at_k(2, 1, 3))


@pytest.mark.parametrize(
    "answers,scores,vote",
    [
        (["1", "2", "2"], [1, 0, 0], 0),
        (["1", "2"], [1, 0], 1),  # A tie: the first seen wins.
        (["2", "1"], [0, 1], 0),
        ([None, None, "1"], [0, 0, 1], 0),  # No answer is an answer.
        (["1", "1", "2"], [NAN, 1, 0], 1),
        (["1", "1", "2"], [NAN, NAN, 0], NAN),
        ([None, None, "1"], [NAN, NAN, 1], 0),
    ],
)
def test_majority_vote(answers, scores, vote):
  np.testing.assert_equal(metrics.majority_vote(answers, scores), vote)


def test_failures_are_left_out():
  assert metrics.exact_match([1, NAN, 0, NAN]) == 0.5
  assert math.isnan(metrics.exact_match([NAN, NAN]))
  estimate = metrics.estimate([0.5, NAN, 0.25], 0.95)
  assert estimate.value == 0.375
  assert estimate.count == 2
  assert metrics.estimate([NAN], 0.95).method == "none"


def test_wilson_of_a_textbook_case():
  # 10 of 20 at 95 %: (0.2993, 0.7007).
  low, high = metrics.wilson(10, 20, 0.95)
  assert (low, high) == pytest.approx((0.2993, 0.7007), abs=1e-4)
  low, high = metrics.wilson(0, 20, 0.95)
  assert (low, high) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_one_sample_per_problem_gets_wilson_more_get_a_bootstrap():
  assert metrics.estimate([0, 1, 1], 0.95).method == "wilson"
  assert metrics.estimate([0, 0, 0], 0.95).high > 0.5
  assert metrics.estimate([0, 0.5, 1], 0.95).method == "bootstrap"


def test_equal_values_leave_doubt():
  """Two problems without a gain say little; a thousand say more."""
  few = metrics.paired_gain([0, 0.5], [0, 0.5], 0.95)
  others = 1 - 0.05**0.5
  assert (few.low, few.high) == pytest.approx((-others, others))
  many = metrics.paired_gain([0] * 1000, [0] * 1000, 0.95)
  assert -0.0031 < many.low < 0 < many.high < 0.0031
  half = metrics.estimate([0.5, 0.5], 0.95)
  assert (half.value, half.method) == (0.5, "exact")
  assert (half.low, half.high) == pytest.approx(
      (0.5 - 0.5 * others, 0.5 + 0.5 * others)
  )


def test_bootstrap_is_that_of_a_mean():
  values = np.random.default_rng(1).normal(size=400)
  low, high = metrics.bootstrap(values, 0.95)
  error = values.std() / math.sqrt(values.size)
  assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
  assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
  assert metrics.bootstrap(values, 0.95) == (low, high)
  narrow = metrics.bootstrap(values, 0.5)
  assert low < narrow[0] < narrow[1] < high


def test_samples_of_a_problem_are_no_independent_trials():
  # 50 problems, each wholly right or wrong in all 4 samples but one: a
  # binomial over 200 trials would claim half the width.
  values = np.repeat([0.0, 1.0], 25)
  values[0] = 0.25
  estimate = metrics.estimate(values, 0.95)
  low, high = metrics.wilson(200 * estimate.value, 200, 0.95)
  assert estimate.high - estimate.low > 1.8 * (high - low)


def test_pairing_sees_what_separate_intervals_do_not():
  rng = np.random.default_rng(0)
  before = rng.uniform(size=100)
  after = before + 0.02 + 0.01 * rng.normal(size=100)
  gain = metrics.paired_gain(before, after, 0.95)
  assert gain.value == pytest.approx(0.02, abs=0.005)
  assert gain.low > 0.015 and gain.high < 0.025
  first, second = (metrics.estimate(x, 0.95) for x in (before, after))
  assert first.high > second.low
  loss = metrics.paired_gain(after, before, 0.95)
  assert loss.high < 0
  assert metrics.paired_gain([0, NAN, 1], [1, 1, NAN], 0.95).count == 1
