"""Pruning of completions and of their ends: golden cases and expectations."""

import curation_cases
import numpy as np
import pytest

from jaxrl_llm.curation import episodes as episodes_lib
from jaxrl_llm.curation import pruning

GOLDEN = curation_cases.GOLDEN


def test_completions_of_the_golden_case():
  case = GOLDEN["cppo"]
  batch = curation_cases.make(case["advantages"])
  for rate, wanted in case["by_rate"].items():
    step = pruning.CompletionTopK(prune_share=float(rate))
    weights = curation_cases.of_episodes(step(batch))
    assert np.flatnonzero(weights).tolist() == wanted["kept"], rate
    assert step.denominator == episodes_lib.SURVIVORS
    assert pruning.survivors(8, float(rate)) == wanted["k"]
    # The surrogate at ratio 1 over k survivors.
    mean = np.dot(weights, case["advantages"]) / weights.sum()
    np.testing.assert_allclose(mean, wanted["surrogate_mean_ratio1"], atol=1e-7)
  step = pruning.CompletionTopK(prune_threshold=0.9)
  # float32 advantages of 0.9 lie just below.
  low = pruning.CompletionTopK(prune_threshold=0.9 - 1e-6)
  kept = np.flatnonzero(curation_cases.of_episodes(low(batch)))
  assert kept.tolist() == case["threshold_0.9"]["kept"]
  assert step.denominator == episodes_lib.ORIGINAL


@pytest.mark.parametrize(
    "count, share, wanted",
    [(8, 0.95, 1), (10, 0.9, 1), (10, 0.7, 3), (16, 0.9375, 1), (7, 0.5, 3)],
)
def test_the_number_kept_does_not_suffer_from_rounding(count, share, wanted):
  assert pruning.survivors(count, share) == wanted


def test_scope_decides_who_is_compared():
  """Group 0 has small advantages: per question it keeps half all the same."""
  advantages = [0.1, -0.2, 0.15, 0.05, 2.0, -3.0, 1.0, 0.9]
  groups = [7, 7, 7, 7, 3, 3, 3, 3]
  batch = curation_cases.make(advantages, groups)
  per_question = pruning.CompletionTopK()(batch)
  kept = np.flatnonzero(curation_cases.of_episodes(per_question))
  assert kept.tolist() == [1, 2, 4, 5]
  together = pruning.CompletionTopK(prune_scope="batch")(batch)
  kept = np.flatnonzero(curation_cases.of_episodes(together))
  assert kept.tolist() == [4, 5, 6, 7]


def test_ties_go_to_the_lower_place():
  batch = curation_cases.make([1.0, -1.0, 1.0, -1.0])
  kept = np.flatnonzero(curation_cases.of_episodes(
      pruning.CompletionTopK()(batch)
  ))
  assert kept.tolist() == [0, 1]


def test_random_pruning_of_the_golden_case():
  case = GOLDEN["dppo_prune_RECONSTRUCTION"]
  batch = curation_cases.make(case["advantages"])
  step = pruning.RandomPruning(prune_probability=0.6)
  chances = step.keep_probabilities(batch)
  np.testing.assert_allclose(chances, case["keep_prob"], rtol=1e-12)
  np.testing.assert_allclose(1 / chances, case["weights_if_kept"], rtol=1e-12)
  weights = curation_cases.of_episodes(step(batch))
  for weight, inverse in zip(weights, case["weights_if_kept"]):
    assert weight == 0 or weight == pytest.approx(inverse)


def test_random_pruning_drops_with_its_probability():
  """4,000 completions, r = 0.3: the share kept is 0.7 within 5 sigma."""
  count = 4000
  advantages = np.where(np.arange(count) % 2, 0.1, 1.0)
  batch = curation_cases.make(advantages)
  weights = curation_cases.of_episodes(
      pruning.RandomPruning(prune_probability=0.3)(batch)
  )
  large, small = weights[::2], weights[1::2]
  assert np.all(large == 1.0)
  assert abs(np.mean(small > 0) - 0.7) < 5 * np.sqrt(0.21 / small.size)
  assert set(np.round(small, 6)) == {0.0, round(1 / 0.7, 6)}


def test_a_draw_depends_on_seed_step_and_record_alone():
  batch = curation_cases.make(np.zeros(6), seed=3, step=2)
  draws = batch.uniforms()
  assert len(set(draws)) == 6 and (0 <= draws).all() and (draws < 1).all()
  order = [4, 1, 5]
  part = curation_cases.make(np.zeros(3), seed=3, step=2)
  part = part.__class__(
      **{**vars(part), "record_ids": batch.record_ids[order]}
  )
  np.testing.assert_array_equal(part.uniforms(), draws[order])
  for change in ({"seed": 4}, {"step": 1}):
    other = part.__class__(**{**vars(batch), **change})
    assert (other.uniforms() != draws).all()
  # Ids that differ in their high bits alone.
  high = part.__class__(**{**vars(batch), "record_ids": np.arange(6) + 2**61})
  assert (high.uniforms() != draws).all()


def golden_prefixes():
  """p of the golden case is not the library's: give it by hand."""
  case = GOLDEN["ps_ppo_RECONSTRUCTION"]

  class Given(pruning.PrefixSampling):

    def cutoffs(self, length):
      return np.arange(1, length + 1), np.array(case["cutoff_probs"])

  return case, Given()


def test_prefixes_of_the_golden_case():
  case, step = golden_prefixes()
  terms = np.array(case["token_terms"])
  full = step.token_weights(5, 5)
  np.testing.assert_allclose(full, 1 / np.array(case["survival"]), rtol=1e-12)
  estimates = [
      np.sum(step.token_weights(cutoff, 5) * terms) / 5
      for cutoff in range(1, 6)
  ]
  np.testing.assert_allclose(
      estimates, case["estimates_by_cutoff"], rtol=1e-12
  )
  expectation = np.dot(estimates, case["cutoff_probs"])
  np.testing.assert_allclose(expectation, case["target"], rtol=1e-12)


@pytest.mark.parametrize("full", [0.2, 0.4, 1.0])
@pytest.mark.parametrize("shortest", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_prefix_weights_have_expectation_one(full, shortest, length):
  step = pruning.PrefixSampling(full_probability=full, min_prefix=shortest)
  cutoffs, chances = step.cutoffs(length)
  assert chances.sum() == pytest.approx(1, abs=1e-12)
  assert cutoffs[-1] == length and cutoffs[0] >= shortest * length
  mean = sum(
      chance * step.token_weights(int(cutoff), length)
      for cutoff, chance in zip(cutoffs, chances)
  )
  np.testing.assert_allclose(mean, 1.0, rtol=1e-12)
  assert step.token_weights(length, length).max() <= 1 / full + 1e-9


def test_a_cutoff_counts_trained_tokens_and_leaves_tool_tokens_alone():
  batch = curation_cases.make(np.zeros(200), lengths=[5] * 200)
  step = pruning.PrefixSampling()
  seen = set()
  for mask, row in zip(batch.masks, step(batch)):
    assert row[~mask] == 0
    trained = row[mask]
    cutoff = np.count_nonzero(trained)
    seen.add(cutoff)
    np.testing.assert_array_equal(trained, step.token_weights(cutoff, 5))
  assert seen == {1, 2, 3, 4, 5}
