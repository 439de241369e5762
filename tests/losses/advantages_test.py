"""Advantages of rollout batches, golden and by case."""

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import token_advantages

DATA = loss_batches.load("data.json")["golden"]


def _advantages(overrides, rewards, groups, lengths=None, **fields):
  lengths = np.ones(len(rewards)) if lengths is None else lengths
  spec = algorithms.build(overrides)
  found = objective.advantages(spec, rewards, groups, lengths, **fields)
  return np.asarray(found)


PARTS = {
    "grpo_ddof1_eps1e-6": {"name": "grpo"},
    "grpo_ddof0_eps1e-6": {"name": "grpo", "std_ddof": 0},
    "grpo_ddof1_eps1e-4": {"name": "grpo", "std_epsilon": 1e-4},
    "dr_grpo": {"name": "dr_grpo"},
    "rloo": {"name": "rloo"},
}


@pytest.mark.parametrize("key", PARTS)
def test_groups_of_the_golden(key):
  """All golden groups in one shuffled batch (grouped by id)."""
  blocks = [DATA["group_advantages"][b] for b in "ABCD"]
  rewards = np.concatenate([b["rewards"] for b in blocks])
  wanted = np.concatenate([b[key] for b in blocks])
  groups = np.concatenate(
      [np.full(len(b["rewards"]), 5 - i) for i, b in enumerate(blocks)]
  )
  order = np.random.default_rng(0).permutation(len(rewards))
  with jax.enable_x64(True):
    found = _advantages(PARTS[key], rewards[order], groups[order])
  np.testing.assert_allclose(found, wanted[order], rtol=1e-9, atol=1e-12)


def test_group_of_one():
  """13: the documented 0; verl's convention on request."""
  block = DATA["group_advantages"]["E"]
  rewards, groups = np.array(block["rewards"]), np.array([0])
  cases = {
      "grpo": "grpo_singleton_verl",
      "dr_grpo": "dr_grpo_singleton_verl",
      "rloo": "rloo_singleton_verl",
  }
  with jax.enable_x64(True):
    for name, key in cases.items():
      zero = _advantages({"name": name}, rewards, groups)
      np.testing.assert_array_equal(zero, block["recommended_singleton"])
      verl = _advantages({"name": name, "singleton": "verl"}, rewards, groups)
      np.testing.assert_allclose(verl, block[key], rtol=1e-9)
    found = _advantages({"name": "reinforce_pp_baseline"}, rewards, groups)
    np.testing.assert_array_equal(found, [0.0])


def test_operator_precedence():
  """[1, 0, 0, 1] gives ±0.866, ddof 0 ±1."""
  rewards, groups = np.array([1.0, 0, 0, 1]), np.zeros(4, int)
  found = _advantages({"name": "grpo"}, rewards, groups)
  np.testing.assert_allclose(np.abs(found), 0.866024, rtol=1e-5)
  found = _advantages({"name": "grpo", "std_ddof": 0}, rewards, groups)
  np.testing.assert_allclose(np.abs(found), 1.0, rtol=1e-5)


@pytest.mark.parametrize("level", [0.1, 0.35, 1000.1, -3e7])
def test_equal_rewards_leave_no_residue(level):
  """Equal float32 rewards give exactly 0 in every group baseline."""
  rewards = np.full(8, level, np.float32)
  for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"):
    found = _advantages({"name": name}, rewards, np.zeros(8, int))
    np.testing.assert_array_equal(found, np.zeros(8))
    # Sums of parts in another order differ by ulps only.
    nearly = rewards.copy()
    nearly[0] = np.nextafter(nearly[0], np.float32(np.inf))
    found = _advantages({"name": name}, nearly, np.zeros(8, int))
    np.testing.assert_array_equal(found, np.zeros(8))


def test_the_odd_one_out_stays_of_order_one():
  """11: seven times 0.35 and one 0.0."""
  rewards = np.array([0.35] * 7 + [0.0], np.float32)
  for name, odd in (("rloo", -0.35), ("dr_grpo", -0.30625), ("grpo", -2.4749)):
    found = _advantages({"name": name}, rewards, np.zeros(8, int))
    assert found[-1] == pytest.approx(odd, rel=1e-4)
    assert np.all(np.abs(found) < 3)


def test_large_rewards_do_not_cancel():
  """1000.1 and 1000.2 in float32 have a std of 0.05 (ddof 0)."""
  rewards = np.array([1000.1, 1000.2] * 2, np.float32)
  found = _advantages(
      {"name": "grpo", "std_ddof": 0, "std_epsilon": 0.0}, rewards,
      np.zeros(4, int),
  )
  np.testing.assert_allclose(found, [-1, 1, -1, 1], rtol=1e-3)
  # Deviations themselves, to an ulp of what float32 holds of the rewards.
  wanted = rewards.astype(np.float64) - rewards.astype(np.float64).mean()
  found = _advantages({"name": "dr_grpo"}, rewards, np.zeros(4, int))
  np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_equal_rewards_divide_by_no_std():
  """ε = 0: a group without spread gets 0, not 0/0."""
  overrides = {"name": "grpo", "std_epsilon": 0.0}
  rewards, groups = np.array([1.0, 1, 0, 1]), np.array([0, 0, 1, 1])
  found = _advantages(overrides, rewards, groups)
  np.testing.assert_allclose(found, [0, 0, -(0.5**0.5), 0.5**0.5], rtol=1e-5)


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_a_failed_verifier_takes_no_part(name):
  """NaN gets 0 and moves no other advantage; infinities likewise."""
  rewards = np.array([1.0, 0.0, 0.5, 2.0, 1.0])
  groups = np.array([0, 0, 0, 1, 1])
  lengths = np.array([2.0, 3, 1, 4, 2])
  greedy = np.array([0.5, 0.5, 0.5, 0.25, 0.25])
  needs = objective.requirements(
      algorithms.build(loss_batches.overrides(name))
  )
  if needs.critic:
    pytest.skip("value_test.py has the advantages of a critic")
  fields = lambda g: {"greedy_rewards": g} if needs.greedy_baseline else {}
  wanted = _advantages(
      loss_batches.overrides(name), rewards, groups, lengths, **fields(greedy)
  )
  for bad in (np.nan, np.inf):
    found = _advantages(
        loss_batches.overrides(name),
        np.insert(rewards, 1, bad),
        np.insert(groups, 1, 0),
        np.insert(lengths, 1, 7.0),
        **fields(np.insert(greedy, 1, 0.5)),
    )
    assert found[1] == 0
    np.testing.assert_allclose(np.delete(found, 1), wanted, rtol=1e-6)


def test_a_group_left_with_one_reward_gets_zero():
  rewards, groups = np.array([1.0, np.nan, 0.0, 1.0]), np.array([0, 0, 1, 1])
  for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"):
    found = _advantages({"name": name}, rewards, groups)
    assert found[0] == 0 and found[1] == 0
    assert found[3] > 0 > found[2]


def _token_block(block):
  rewards = np.array(block["token_rewards"])
  mask = np.array(block["mask"], bool)
  return {
      "rewards": np.zeros(len(rewards)),
      "groups": np.arange(len(rewards)),
      "lengths": mask.sum(1),
      "mask": jnp.asarray(mask),
      "token_rewards": jnp.asarray(rewards),
  }


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_reinforce_pp(discount):
  block = DATA["reinforce_pp"]
  with jax.enable_x64(True):
    found = _advantages(
        {"name": "reinforce_pp", "discount": discount}, **_token_block(block)
    )
  wanted = block["by_gamma"][str(discount)]["advantages"]
  np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_reinforce_pp_of_outcomes_needs_no_tokens():
  """[N] and [N, T] forms agree: every token weighs the same."""
  rewards, lengths = np.array([1.0, 0.0, 0.25]), np.array([3, 1, 4])
  mask = np.arange(5) < lengths[:, None]
  with jax.enable_x64(True):
    short = _advantages({"name": "reinforce_pp"}, rewards, range(3), lengths)
    long = _advantages(
        {"name": "reinforce_pp"}, rewards, range(3), lengths,
        mask=jnp.asarray(mask),
    )
  np.testing.assert_allclose(long, short[:, None] * mask, rtol=1e-12)
  # Tokens, not responses, have mean 0 and variance 1.
  assert np.sum(short * lengths) == pytest.approx(0.0, abs=1e-9)
  assert np.sum(short**2 * lengths) / (lengths.sum() - 1) == pytest.approx(1.0)


def test_reinforce_pp_baseline():
  block = DATA["reinforce_pp"]
  wanted = block["baseline"]
  mask = np.array(block["mask"], bool)
  with jax.enable_x64(True):
    found = _advantages(
        {"name": "reinforce_pp_baseline", "singleton": "verl"},
        np.array(wanted["seq_scores"]), np.array(wanted["uid"]), mask.sum(1),
    )
  np.testing.assert_allclose(
      found[:, None] * mask, wanted["advantages"], rtol=1e-9, atol=1e-12
  )


def test_remax():
  block = DATA["remax"]
  greedy = np.array(block["greedy_baseline"])
  with jax.enable_x64(True):
    found = _advantages(
        {"name": "remax"}, greedy_rewards=jnp.asarray(greedy),
        **_token_block(block),
    )
    np.testing.assert_allclose(found, block["advantages"], atol=1e-12)
    outcome = _advantages(
        {"name": "remax", "difference_clip": 5.0}, np.array([9.0, 1.0]),
        np.array([0, 1]), greedy_rewards=np.array([1.0, 0.5]),
    )
    np.testing.assert_array_equal(outcome, [5.0, 0.5])
  with pytest.raises(ValueError, match="greedy_rewards"):
    _advantages({"name": "remax"}, np.ones(2), np.arange(2))


def test_topr_takes_the_reward_itself():
  rewards = np.array([1.0, -0.5])
  found = _advantages({"name": "topr"}, rewards, np.zeros(2, int))
  np.testing.assert_array_equal(found, rewards)


def test_kl_in_the_reward():
  """rloo with TRL's β: the summed k1 is taken off the score."""
  spec = algorithms.build({"name": "rloo", "kl_reward_coefficient": 0.05})
  needs = objective.requirements(spec)
  assert needs.reference and needs.token_rewards and needs.proximal
  mask = jnp.array([[True, True, False], [True, False, True]])
  proximal = jnp.array([[-1.0, -2.0, jnp.nan], [-1.0, jnp.nan, -1.0]])
  reference = jnp.array([[-2.0, -2.0, jnp.nan], [-1.0, jnp.nan, -5.0]])
  tokens = objective.token_rewards(spec, proximal, reference, mask)
  np.testing.assert_allclose(tokens, [[-0.05, 0, 0], [0, 0, -0.2]], atol=1e-7)
  found = objective.advantages(
      spec, np.array([1.0, 1.0]), np.zeros(2, int), np.array([2, 2]),
      mask=mask, token_rewards=tokens,
  )
  np.testing.assert_allclose(found, [0.15, -0.15], rtol=1e-5)


def test_overlong_shapes_the_reward_before_the_baseline():
  overrides = {
      "name": "dapo", "overlong_limit": 10, "overlong_buffer": 4,
      "advantage": "group_mean",
  }
  # Penalties of lengths 6, 8, 10, 12: 0, −½, −1, −1; mean −0.625.
  found = _advantages(
      overrides, np.zeros(4), np.zeros(4, int), np.array([6, 8, 10, 12])
  )
  np.testing.assert_allclose(found, [0.625, 0.125, -0.375, -0.375])


def test_whitening_ignores_what_counts_nothing():
  values = jnp.array([1.0, 3.0, 50.0])
  found = token_advantages.whiten(values, jnp.array([1.0, 1.0, 0.0]))
  np.testing.assert_allclose(found, [-(0.5**0.5), 0.5**0.5, 0], rtol=1e-5)
