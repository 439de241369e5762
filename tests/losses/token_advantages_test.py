"""Whitened and greedy advantages where responses fail or carry rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.losses import advantages as advantages_lib
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective

MASK = jnp.array([[True, True, False], [True, False, True], [True, True, True]])
TOKEN_REWARDS = jnp.array(
    [[0.25, -0.5, 99.0], [0.0, 99.0, 0.5], [1.0, 1.0, 1.0]]
)


def _advantages(overrides, rewards, groups, mask=MASK, **fields):
  found = objective.advantages(
      algorithms.build(overrides), np.array(rewards), np.array(groups),
      np.sum(mask, axis=1), mask=mask, **fields,
  )
  return np.asarray(found)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_a_failed_response_takes_no_part_in_whitening_tokens(discount):
  """Not with its token rewards either."""
  overrides = {"name": "reinforce_pp", "discount": discount}
  with jax.enable_x64(True):
    found = _advantages(
        overrides, [1.0, 0.5, np.nan], [0, 1, 2], token_rewards=TOKEN_REWARDS
    )
    wanted = _advantages(
        overrides, [1.0, 0.5], [0, 1], MASK[:2],
        token_rewards=TOKEN_REWARDS[:2],
    )
  assert np.all(found[2] == 0)
  np.testing.assert_allclose(found[:2], wanted, rtol=1e-9)
  assert np.all(found[~np.asarray(MASK)] == 0)


def test_totals_add_token_rewards_of_valid_responses():
  episodes = advantages_lib.Episodes(
      scores=jnp.array([1.0, 2.0, jnp.nan]), groups=jnp.arange(3),
      lengths=jnp.array([2.0, 2, 3]), mask=MASK, token_rewards=TOKEN_REWARDS,
  )
  np.testing.assert_allclose(episodes.totals(), [0.75, 2.5, 0.0])


def test_a_singleton_moves_no_baseline_of_others():
  """zero: it is not among the tokens that are whitened."""
  overrides = {"name": "reinforce_pp_baseline"}
  with jax.enable_x64(True):
    found = _advantages(overrides, [1.0, 0.0, 1.0], [0, 0, 1])
    wanted = _advantages(overrides, [1.0, 0.0], [0, 0], MASK[:2])
  np.testing.assert_allclose(found, [*wanted, 0.0], rtol=1e-9)


def test_remax_cuts_both_ways():
  """R − greedy R within ±2: 8 → 2, −9 → −2, 0.5 stays."""
  overrides = {"name": "remax", "difference_clip": 2.0}
  rewards, greedy = [9.0, -8.0, 1.0], jnp.array([1.0, 1.0, 0.5])
  found = _advantages(overrides, rewards, range(3), greedy_rewards=greedy)
  np.testing.assert_array_equal(found, [2.0, -2.0, 0.5])
  # A token adds its own reward only; masked tokens have none.
  found = _advantages(
      overrides, rewards, range(3), greedy_rewards=greedy,
      token_rewards=TOKEN_REWARDS,
  )
  wanted = [[2.25, 1.5, 0], [-2.0, 0, -1.5], [1.5, 1.5, 1.5]]
  np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("clip", [None, 2.0])
def test_remax_of_a_failed_response_is_zero_on_every_token(clip):
  """Whether its own reward or the greedy one failed."""
  overrides = {"name": "remax", "difference_clip": clip}
  found = _advantages(
      overrides, [np.nan, 1.0, 1.0], range(3), token_rewards=TOKEN_REWARDS,
      greedy_rewards=jnp.array([0.5, jnp.nan, 0.5]),
  )
  np.testing.assert_array_equal(found[:2], np.zeros((2, 3)))
  assert np.all(found[2] != 0)
