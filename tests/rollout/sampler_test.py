"""Tests of jaxrl_llm/rollout/sampler.py against numpy and scipy."""

import functools

import jax
import numpy as np
import pytest
from scipy import stats

from jaxrl_llm.rollout import sampler

Truncation = sampler.Truncation
DRAW = jax.jit(sampler.draw, static_argnames=("truncation", "topk"))
THRESHOLD = jax.jit(
    sampler.probability_threshold, static_argnames=("truncation",)
)
ROWS = 4096


def random_logits(vocabulary, scale=2.0, seed=0):
  generator = np.random.default_rng(seed)
  return (scale * generator.normal(size=vocabulary)).astype(np.float32)


def log_softmax(logits, temperature=1.0):
  scaled = np.asarray(logits, np.float64) / temperature
  scaled -= scaled.max()
  return scaled - np.log(np.exp(scaled).sum())


def keys_of(samples, seed=0, stream="rollout", round_number=0, prompt=7):
  words = sampler.request_words(
      stream, seed, round_number, [prompt] * len(samples), samples
  )
  return sampler.response_keys(words)


def draw_many(logits, temperature, truncation, positions=4, topk=0):
  """Returns a Draw of ROWS samples at each of the first positions."""
  keys = keys_of(range(ROWS))
  tiled = np.tile(logits, (ROWS, 1))
  temperatures = np.full(ROWS, temperature, np.float32)
  draws = [
      DRAW(
          tiled, keys, np.full(ROWS, t, np.int32), temperatures, truncation,
          topk,
      )
      for t in range(positions)
  ]
  return jax.tree.map(lambda *parts: np.concatenate(parts), *draws)


def kept_by_sorting(logits, temperature, truncation):
  """Filters one vocabulary as published: sort, cut, renormalise, cut again."""
  probabilities = np.exp(log_softmax(logits, temperature))
  order = np.argsort(-probabilities, kind="stable")
  kept = np.ones(len(order), bool)
  if truncation.top_k:
    kept[order[truncation.top_k :]] = False
  if truncation.top_p < 1:
    renormalised = np.where(kept, probabilities, 0)
    renormalised /= renormalised.sum()
    before = np.cumsum(renormalised[order]) - renormalised[order]
    kept[order[before >= truncation.top_p]] = False
  kept &= probabilities >= truncation.min_p * probabilities.max()
  return kept, probabilities


TRUNCATIONS = (
    Truncation(),
    Truncation(top_k=40),
    Truncation(top_p=0.9),
    Truncation(min_p=0.05),
    Truncation(top_k=100, top_p=0.8, min_p=0.02),
)


@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_frequencies_are_those_of_the_truncated_softmax(truncation):
  # 600 tokens are three blocks, the last one padded: both stages matter.
  logits = random_logits(600)
  drawn = draw_many(logits, 0.6, truncation)
  kept, probabilities = kept_by_sorting(logits, 0.6, truncation)
  assert kept[drawn.tokens].all()
  expected = np.where(kept, probabilities, 0) * len(drawn.tokens)
  expected /= probabilities[kept].sum()
  observed = np.bincount(drawn.tokens, minlength=600)
  often = expected >= 5
  observed = np.append(observed[often], observed[~often].sum())
  expected = np.append(expected[often], expected[~often].sum())
  observed, expected = observed[expected > 0], expected[expected > 0]
  assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_logprobs_and_kept_mass_add_up_to_the_full_vocabulary(truncation):
  # Without the mass the ratio would be `kept` at every token.
  logits = random_logits(600)
  drawn = draw_many(logits, 0.6, truncation, positions=1, topk=5)
  kept, probabilities = kept_by_sorting(logits, 0.6, truncation)
  full = log_softmax(logits, 0.6)
  mass = probabilities[kept].sum()
  np.testing.assert_allclose(drawn.log_kept_mass, np.log(mass), atol=2e-6)
  np.testing.assert_allclose(
      drawn.logprobs, full[drawn.tokens] - np.log(mass), atol=5e-6
  )
  order = np.argsort(-full)[:5]
  np.testing.assert_array_equal(drawn.topk_ids, np.tile(order, (ROWS, 1)))
  np.testing.assert_allclose(
      drawn.topk_logprobs + drawn.log_kept_mass[:, None],
      np.tile(full[order], (ROWS, 1)),
      atol=5e-6,
  )


def test_log_kept_mass_is_zero_without_truncation():
  drawn = draw_many(random_logits(600), 1.0, Truncation(), positions=1)
  np.testing.assert_array_equal(drawn.log_kept_mass, np.zeros(ROWS))


@pytest.mark.parametrize(
    "truncation, kept",
    (
        (Truncation(top_p=0.9), [1, 1, 1, 0]),  # .5 + .3 < .9 ≤ .95
        (Truncation(top_p=0.8), [1, 1, 0, 0]),  # .5 + .3 reach .8
        (Truncation(top_p=0.01), [1, 0, 0, 0]),  # at least the best one
        (Truncation(top_k=2), [1, 1, 0, 0]),
        (Truncation(top_k=9), [1, 1, 1, 1]),
        (Truncation(min_p=0.3), [1, 1, 1, 0]),  # ≥ .15
        (Truncation(min_p=0.31), [1, 1, 0, 0]),
        # After top_k 2 the masses are .625 and .375: .6 keeps one token, of
        # the whole vocabulary it would keep two.
        (Truncation(top_k=2, top_p=0.6), [1, 0, 0, 0]),
        (Truncation(top_p=0.6), [1, 1, 0, 0]),
    ),
)
def test_threshold_by_hand(truncation, kept):
  probabilities = np.array([[0.5, 0.3, 0.15, 0.05]], np.float32)
  threshold = THRESHOLD(probabilities, truncation)
  np.testing.assert_array_equal(
      probabilities[0] >= np.asarray(threshold), np.array(kept, bool)
  )


def test_kept_mass_of_top_k_in_a_random_vocabulary():
  # Top-k 50 of 32k random tokens keeps a small share of the mass.
  logits = random_logits(32000, scale=2.0)
  truncation = Truncation(top_k=50)
  drawn = DRAW(
      logits[None], keys_of([0]), np.zeros(1, np.int32),
      np.ones(1, np.float32), truncation,
  )
  kept, probabilities = kept_by_sorting(logits, 1.0, truncation)
  mass = probabilities[kept].sum()
  assert 0.1 < mass < 0.3
  np.testing.assert_allclose(np.exp(drawn.log_kept_mass), [mass], rtol=1e-5)


def test_tokens_that_tie_with_the_last_kept_one_are_kept():
  probabilities = np.array([[0.4, 0.2, 0.2, 0.2]], np.float32)
  threshold = THRESHOLD(probabilities, Truncation(top_k=2))
  np.testing.assert_array_equal(probabilities >= threshold, [[True] * 4])


def test_temperature_zero_takes_the_first_maximum():
  logits = np.tile(random_logits(600), (ROWS, 1))
  logits[:, [300, 599]] = 20.0
  drawn = DRAW(
      logits, keys_of(range(ROWS)), np.zeros(ROWS, np.int32),
      np.zeros(ROWS, np.float32), Truncation(top_p=0.5),
  )
  np.testing.assert_array_equal(drawn.tokens, np.full(ROWS, 300))
  np.testing.assert_array_equal(drawn.log_kept_mass, np.zeros(ROWS))
  np.testing.assert_allclose(
      drawn.logprobs, log_softmax(logits[0])[300], atol=5e-6
  )


def test_a_row_depends_on_itself_alone():
  generator = np.random.default_rng(1)
  logits = generator.normal(size=(ROWS, 600)).astype(np.float32)
  keys = np.asarray(keys_of(range(ROWS)))
  positions = generator.integers(0, 99, ROWS).astype(np.int32)
  temperatures = generator.uniform(0, 2, ROWS).astype(np.float32)
  order = generator.permutation(ROWS)
  run = functools.partial(DRAW, truncation=Truncation(top_p=0.9), topk=3)
  straight = run(logits, keys, positions, temperatures)
  shuffled = run(
      logits[order], keys[order], positions[order], temperatures[order]
  )
  jax.tree.map(
      lambda x, y: np.testing.assert_array_equal(np.asarray(x)[order], y),
      straight,
      shuffled,
  )


def test_every_coordinate_of_a_response_changes_its_key():
  # Equal seeds elsewhere must not repeat a response.
  high = 1 << 32
  keys = [
      keys_of([0]),
      keys_of([1]),
      keys_of([0], seed=1),
      keys_of([0], seed=high),
      keys_of([0], seed=-1),
      keys_of([0], round_number=1),
      keys_of([0], prompt=8),
      keys_of([0], prompt=7 + high),
      keys_of([0], stream="evaluation"),
      keys_of([0], stream="baseline"),
  ]
  assert len({np.asarray(key).tobytes() for key in keys}) == len(keys)


def test_positions_draw_independently():
  drawn = draw_many(np.zeros(600, np.float32), 1.0, Truncation(), positions=2)
  first, second = drawn.tokens.reshape(2, ROWS)
  # Equal by chance: 4096 / 600, that is 6.8 ± 2.6.
  assert 0 < np.sum(first == second) < 17


def test_a_seed_keeps_its_meaning():
  drawn = draw_many(np.zeros(600, np.float32), 1.0, Truncation(), positions=1)
  np.testing.assert_array_equal(drawn.tokens[:6], GOLDEN_TOKENS)


GOLDEN_TOKENS = (533, 54, 413, 435, 147, 587)


@pytest.mark.parametrize(
    "name, value",
    (
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", 1.0),
        ("max_new_tokens", 0),
        ("record_topk", -1),
    ),
)
def test_settings_name_the_key_they_refuse(name, value):
  with pytest.raises(ValueError, match=rf"^sampling\.{name}: expected .*found"):
    sampler.SamplingSettings(**{name: value})
