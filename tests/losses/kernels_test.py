"""Each kernel: by hand, against a loop, one property, one gradient."""

import chex
import hypothesis as hp
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl_llm.losses import kernels

T = 9
SETTINGS = hp.settings(deadline=None, max_examples=50, derandomize=True)
VALUES = hnp.arrays(
    np.float32, T,
    elements=st.floats(-20, 20, width=32, allow_subnormal=False),
)
BOOLS = hnp.arrays(bool, T)

SUMS = [
    jax.jit(kernels.cumulative_log_ratios),
    jax.jit(kernels.cumulative_log_ratios_parallel),
]
LAST = [jax.jit(kernels.last_values), jax.jit(kernels.last_values_parallel)]
BUDGETS = [
    jax.jit(kernels.prefix_budgets), jax.jit(kernels.prefix_budgets_parallel)
]
RETURNS = [
    jax.jit(kernels.discounted_returns),
    jax.jit(kernels.discounted_returns_parallel),
]


def _loop_sums(values, mask, starts):
  total, result = 0.0, []
  for value, valid, start in zip(values, mask, starts):
    total = 0.0 if start else total
    total += value if valid else 0.0
    result.append(total)
  return np.array(result)


def _loop_budgets(spent, allowed, mask, starts, delta):
  total = budget = 0.0
  budgets, shares = [], []
  for cost, gain, valid, start in zip(spent, allowed, mask, starts):
    if start:
      total = budget = 0.0
    budgets.append(min(delta, delta + budget - total))
    total += cost if valid else 0.0
    shares.append(total / (delta + budget))
    budget += gain if valid else 0.0
  return np.array(budgets), np.array(shares)


class CumulativeLogRatiosTest(chex.TestCase):

  @chex.variants(with_jit=True, without_jit=True)
  def test_by_hand(self):
    # Sequences [1, 2 | tool, 4] and [3, 5]: 1, 3, 3, 7 and 3, 8.
    values = jnp.array([1.0, 2.0, 9.0, 4.0, 3.0, 5.0])
    mask = jnp.array([True, True, False, True, True, True])
    starts = jnp.array([True, False, False, False, True, False])
    for kernel in (
        kernels.cumulative_log_ratios, kernels.cumulative_log_ratios_parallel
    ):
      found = self.variant(kernel)(values, mask, starts)
      np.testing.assert_array_equal(found, [1, 3, 3, 7, 3, 8])

  @SETTINGS
  @hp.given(VALUES, BOOLS, BOOLS)
  def test_both_forms_equal_a_loop(self, values, mask, starts):
    wanted = _loop_sums(values, mask, starts)
    for kernel in SUMS:
      found = kernel(values, mask, starts)
      np.testing.assert_allclose(found, wanted, atol=1e-4)

  @SETTINGS
  @hp.given(VALUES, BOOLS, BOOLS, st.integers(1, T - 1))
  def test_future_tokens_change_nothing(self, values, mask, starts, t):
    other = np.concatenate([values[:t], values[t:] + 1])
    for kernel in SUMS:
      np.testing.assert_array_equal(
          kernel(values, mask, starts)[:t], kernel(other, mask, starts)[:t]
      )

  def test_gradient_counts_later_tokens_of_the_sequence(self):
    # d Σ_t c_t / d ℓ_s = later valid or masked positions of s's sequence.
    mask = jnp.array([True, False, True, True, True])
    starts = jnp.array([True, False, False, True, False])
    values = jnp.array([0.5, jnp.nan, 0.25, 1.0, 2.0])
    for kernel in SUMS:
      total = lambda x, kernel=kernel: jnp.sum(kernel(x, mask, starts))
      found = jax.grad(total)(values)
      np.testing.assert_array_equal(found, [3, 0, 1, 2, 1])
      _, tangent = jax.jvp(total, (values,), (jnp.ones(5),))
      self.assertEqual(float(tangent), 7.0)


class LastValuesTest(chex.TestCase):

  @chex.variants(with_jit=True, without_jit=True)
  def test_by_hand(self):
    values = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0])
    starts = jnp.array([True, False, True, False, False])
    for kernel in (kernels.last_values, kernels.last_values_parallel):
      found = self.variant(kernel)(values, starts)
      np.testing.assert_array_equal(found, [2, 2, 5, 5, 5])

  @SETTINGS
  @hp.given(VALUES, BOOLS)
  def test_both_forms_equal_a_loop(self, values, starts):
    wanted, held = [], values[-1]
    for t in reversed(range(T)):
      if t == T - 1 or starts[t + 1]:
        held = values[t]
      wanted.append(held)
    for kernel in LAST:
      np.testing.assert_array_equal(kernel(values, starts), wanted[::-1])

  def test_gradient_lands_on_the_last_token(self):
    starts = jnp.array([True, False, False, True, False])
    for kernel in LAST:
      total = lambda x, kernel=kernel: jnp.sum(kernel(x, starts))
      found = jax.grad(total)(jnp.arange(5.0))
      np.testing.assert_array_equal(found, [0, 0, 3, 0, 2])


class PrefixBudgetsTest(chex.TestCase):

  @chex.variants(with_jit=True, without_jit=True)
  def test_by_hand(self):
    # δ = 0.15, δ_b = 0.02, ω = 1: before each token 0.15, then
    # 0.15 + 0.02 − 0.14 = 0.03, tool token unchanged, 0.03 again; the second
    # sequence starts afresh.
    spent = jnp.array([0.14, 9.0, 0.03, 0.5])
    allowed = jnp.full(4, 0.02)
    mask = jnp.array([True, False, True, True])
    starts = jnp.array([True, False, False, True])
    for kernel in (kernels.prefix_budgets, kernels.prefix_budgets_parallel):
      budgets, shares = self.variant(kernel)(spent, allowed, mask, starts, 0.15)
      np.testing.assert_allclose(budgets, [0.15, 0.03, 0.03, 0.15], rtol=1e-5)
      np.testing.assert_allclose(
          shares[mask], [0.14 / 0.15, 0.17 / 0.17, 0.5 / 0.15], rtol=1e-5
      )

  @SETTINGS
  @hp.given(VALUES, VALUES, BOOLS, BOOLS)
  def test_both_forms_equal_a_loop(self, spent, allowed, mask, starts):
    spent, allowed = np.abs(spent), np.abs(allowed)
    wanted = _loop_budgets(spent, allowed, mask, starts, 0.5)
    for kernel in BUDGETS:
      budgets, shares = kernel(spent, allowed, mask, starts, 0.5)
      np.testing.assert_allclose(budgets, wanted[0], atol=1e-4)
      np.testing.assert_allclose(
          shares[mask], wanted[1][mask], rtol=1e-4, atol=1e-4
      )

  @SETTINGS
  @hp.given(VALUES, BOOLS, BOOLS, st.integers(0, T - 1))
  def test_spending_more_leaves_less(self, spent, mask, starts, t):
    spent = np.abs(spent)
    more = spent + np.where(np.arange(T) == t, 1.0, 0.0).astype(np.float32)
    allowed = np.full(T, 0.1, np.float32)
    for kernel in BUDGETS:
      before = kernel(spent, allowed, mask, starts, 0.5)[0]
      after = kernel(more, allowed, mask, starts, 0.5)[0]
      assert np.all(np.asarray(after) <= np.asarray(before) + 1e-4)
      np.testing.assert_array_equal(after[: t + 1], before[: t + 1])

  def test_gradient_of_a_budget_is_minus_one_per_earlier_cost(self):
    mask = jnp.array([True, True, False, True])
    starts = jnp.array([True, False, False, False])
    spent = jnp.array([1.0, 1.0, jnp.nan, 1.0])
    for kernel in BUDGETS:
      last = lambda x, k=kernel: k(x, jnp.zeros(4), mask, starts, 0.5)[0][3]
      np.testing.assert_array_equal(jax.grad(last)(spent), [-1, -1, 0, 0])


class DiscountedReturnsTest(chex.TestCase):

  @chex.variants(with_jit=True, without_jit=True)
  def test_by_hand(self):
    # γ = 0.5: [1, tool, 4] gives 1 + 0.5·4 = 3, 4, 4; [2] stays 2.
    rewards = jnp.array([1.0, 9.0, 4.0, 2.0])
    mask = jnp.array([True, False, True, True])
    starts = jnp.array([True, False, False, True])
    for kernel in (
        kernels.discounted_returns, kernels.discounted_returns_parallel
    ):
      found = self.variant(kernel)(rewards, mask, starts, 0.5)
      np.testing.assert_array_equal(found, [3, 4, 4, 2])

  @SETTINGS
  @hp.given(VALUES, BOOLS, BOOLS)
  def test_both_forms_equal_a_loop(self, rewards, mask, starts):
    wanted, later = [], 0.0
    for t in reversed(range(T)):
      if t == T - 1 or starts[t + 1]:
        later = 0.0
      if mask[t]:
        later = rewards[t] + 0.9 * later
      wanted.append(later)
    for kernel in RETURNS:
      found = kernel(rewards, mask, starts, 0.9)
      np.testing.assert_allclose(found, wanted[::-1], rtol=1e-4, atol=1e-4)

  @SETTINGS
  @hp.given(VALUES, BOOLS, BOOLS, st.integers(0, T - 2))
  def test_past_rewards_change_nothing(self, rewards, mask, starts, t):
    other = np.concatenate([rewards[: t + 1] + 1, rewards[t + 1 :]])
    for kernel in RETURNS:
      np.testing.assert_array_equal(
          kernel(rewards, mask, starts, 0.9)[t + 1 :],
          kernel(other, mask, starts, 0.9)[t + 1 :],
      )

  def test_gradient_is_the_discount(self):
    mask = jnp.array([True, False, True])
    starts = jnp.array([True, False, False])
    for kernel in RETURNS:
      first = lambda x, k=kernel: k(x, mask, starts, 0.5)[0]
      found = jax.grad(first)(jnp.array([1.0, jnp.nan, 1.0]))
      np.testing.assert_array_equal(found, [1, 0, 0.5])


def test_form_of_the_backend():
  scan, parallel = object(), object()
  assert kernels.form(scan, parallel) is scan  # These tests run on a CPU.
