"""Recurrences over one row [T] of packed sequences; the caller vmaps.

Every kernel resets where a sequence starts and skips masked tokens in both
value and position. Each is a `lax.scan`, followed by a parallel form of
logarithmic depth; FORMS says which one runs.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxrl_llm import platforms

Array = jax.Array


def cumulative_log_ratios(
    log_ratios: Array, mask: Array, starts: Array
) -> Array:
  """Sums per-token log-ratios along each response: c_t = Σ_{s≤t} m_s ℓ_s.

  Args:
    log_ratios: float [T], log π − log μ in nats; ignored where masked.
    mask: bool [T], True on response tokens.
    starts: bool [T], True on the first token of each packed sequence.

  Returns:
    float [T]; on masked positions, the last valid sum.
  """
  _check(log_ratios, mask, starts)

  def add_token(total, token):
    log_ratio, valid, start = token
    total = jnp.where(start, 0.0, total) + jnp.where(valid, log_ratio, 0.0)
    return total, total

  zero = jnp.zeros((), log_ratios.dtype)
  return jax.lax.scan(add_token, zero, (log_ratios, mask, starts))[1]


def cumulative_log_ratios_parallel(
    log_ratios: Array, mask: Array, starts: Array
) -> Array:
  """The same sums by `associative_scan`."""
  _check(log_ratios, mask, starts)

  def join(left, right):
    left_start, left_sum = left
    right_start, right_sum = right
    carried = jnp.where(right_start, 0.0, left_sum)
    return left_start | right_start, carried + right_sum

  values = jnp.where(mask, log_ratios, 0.0)
  return jax.lax.associative_scan(join, (starts, values))[1]


def last_values(values: Array, starts: Array) -> Array:
  """Gives every token of a sequence the value at the sequence's last token.

  Args:
    values: float [T].
    starts: bool [T], True on the first token of each packed sequence.

  Returns:
    float [T], constant on each sequence.
  """
  chex.assert_rank([values, starts], 1)
  chex.assert_equal_shape([values, starts])

  def hold(held, token):
    value, end = token
    held = jnp.where(end, value, held)
    return held, held

  ends = jnp.concatenate([starts[1:], jnp.ones_like(starts[:1])])
  return jax.lax.scan(hold, values[-1], (values, ends), reverse=True)[1]


def last_values_parallel(values: Array, starts: Array) -> Array:
  """The same by `associative_scan`."""
  chex.assert_rank([values, starts], 1)
  chex.assert_equal_shape([values, starts])

  def join(later, earlier):
    later_end, later_value = later
    earlier_end, earlier_value = earlier
    held = jnp.where(earlier_end, earlier_value, later_value)
    return later_end | earlier_end, held

  ends = jnp.concatenate([starts[1:], jnp.ones_like(starts[:1])])
  return jax.lax.associative_scan(join, (ends, values), reverse=True)[1]


def prefix_budgets(
    spent: Array, allowances: Array, mask: Array, starts: Array, delta: Array
) -> tuple[Array, Array]:
  """What is left for token t: c_t = min{δ, δ + B_{t−1} − S_{t−1}}.

  CPPO (arXiv 2606.10968) Eq 8 with S_t = Σ_{j≤t} ω_j D_j and
  B_t = δ_b Σ_{j≤t} ω_j.

  Args:
    spent: float [T], ω_t D_t, in units of the divergence; ignored where masked.
    allowances: float [T], δ_b ω_t, same unit; ignored where masked.
    mask: bool [T], True on response tokens.
    starts: bool [T], True on the first token of each packed sequence.
    delta: float scalar δ, the largest weighted divergence of one token.

  Returns:
    (budgets, shares): float [T]; c_t, and S_t / (δ + B_{t−1}), the share of
    the prefix budget in use after token t. Undefined where masked.
  """
  _check(spent, mask, starts)
  chex.assert_equal_shape([spent, allowances])

  def add_token(carry, token):
    cost, allowance, valid, start = token
    total, allowed = (jnp.where(start, 0.0, x) for x in carry)
    budget = jnp.minimum(delta, delta + allowed - total)
    after = total + jnp.where(valid, cost, 0.0)
    share = after / (delta + allowed)
    allowed = allowed + jnp.where(valid, allowance, 0.0)
    return (after, allowed), (budget, share)

  zero = jnp.zeros((), spent.dtype)
  tokens = (spent, allowances, mask, starts)
  return jax.lax.scan(add_token, (zero, zero), tokens)[1]


def prefix_budgets_parallel(
    spent: Array, allowances: Array, mask: Array, starts: Array, delta: Array
) -> tuple[Array, Array]:
  """The same from two parallel running sums."""
  sums = cumulative_log_ratios_parallel
  after = sums(spent, mask, starts)
  total = after - jnp.where(mask, spent, 0.0)
  allowed = sums(allowances, mask, starts) - jnp.where(mask, allowances, 0.0)
  budgets = jnp.minimum(delta, delta + allowed - total)
  return budgets, after / (delta + allowed)


def discounted_returns(
    rewards: Array, mask: Array, starts: Array, discount: Array
) -> Array:
  """Reward to go: G_t = rew_t + γ G_{t+1}, masked tokens deleted.

  With td_t for rew_t and γλ for γ it is generalized advantage estimation
  (arXiv 1506.02438, Eq 16).

  Args:
    rewards: float [T], token rewards; ignored where masked.
    mask: bool [T], True on response tokens.
    starts: bool [T], True on the first token of each packed sequence.
    discount: float scalar γ.

  Returns:
    float [T]; on masked positions, the return of the next valid token.
  """
  _check(rewards, mask, starts)

  def add_token(later, token):
    reward, valid, end = token
    later = jnp.where(end, 0.0, later)
    later = jnp.where(valid, reward + discount * later, later)
    return later, later

  ends = jnp.concatenate([starts[1:], jnp.ones_like(starts[:1])])
  zero = jnp.zeros((), rewards.dtype)
  tokens = (rewards, mask, ends)
  return jax.lax.scan(add_token, zero, tokens, reverse=True)[1]


def discounted_returns_parallel(
    rewards: Array, mask: Array, starts: Array, discount: Array
) -> Array:
  """The same from G_t = a_t + b_t G_{t+1} by `associative_scan`."""
  _check(rewards, mask, starts)

  def join(later, earlier):
    later_factor, later_return = later
    factor, reward = earlier
    return factor * later_factor, reward + factor * later_return

  ends = jnp.concatenate([starts[1:], jnp.ones_like(starts[:1])])
  factors = jnp.where(mask, discount, 1.0).astype(rewards.dtype)
  factors = jnp.where(ends, 0.0, factors)
  values = jnp.where(mask, rewards, 0.0)
  return jax.lax.associative_scan(join, (factors, values), reverse=True)[1]


def next_values(
    values: Array, after: Array, mask: Array, starts: Array
) -> Array:
  """V(s_{t+1}): the value at the sequence's next valid token.

  Args:
    values: float [T], V(s_t); ignored where masked.
    after: float [T], what stands for the next value at the last valid token:
      0 where the sequence ended, V(s_t) itself where it was cut (EGAE, arXiv
      2506.15050).
    mask: bool [T], True on response tokens.
    starts: bool [T], True on the first token of each packed sequence.

  Returns:
    float [T]; undefined where masked.
  """
  _check(values, mask, starts)
  chex.assert_equal_shape([values, after])

  def add_token(carry, token):
    later, seen = carry
    value, beyond, valid, end = token
    seen = seen & ~end
    given = jnp.where(seen, later, beyond)
    later = jnp.where(valid, value, later)
    return (later, seen | valid), given

  ends = jnp.concatenate([starts[1:], jnp.ones_like(starts[:1])])
  first = (jnp.zeros((), values.dtype), jnp.zeros((), bool))
  tokens = (values, after, mask, ends)
  return jax.lax.scan(add_token, first, tokens, reverse=True)[1]


def next_values_parallel(
    values: Array, after: Array, mask: Array, starts: Array
) -> Array:
  """The same by `associative_scan`."""
  _check(values, mask, starts)
  chex.assert_equal_shape([values, after])

  def join(later, earlier):
    decided = earlier[0]
    held = [jnp.where(decided, y, x) for x, y in zip(later[1:], earlier[1:])]
    return later[0] | decided, *held

  ends = jnp.concatenate([starts[1:], jnp.ones_like(starts[:1])])
  tokens = (mask | ends, mask, values)
  _, seen, later = jax.lax.associative_scan(join, tokens, reverse=True)
  # What is known after token t + 1 is what token t may read.
  seen, later = (jnp.roll(x, -1) for x in (seen, later))
  return jnp.where(seen & ~ends, later, after)


# Which form runs, by platform. CPU: measured at [64, 8192] and [8, 2048] with
# experiments/benchmarks/loss_kernels.py, forward, and backward of the kernels
# that losses differentiate. GPU and TPU: reasoned, not measured: each step of
# a scan is a launch there, and a row has thousands.
FORMS = {"cpu": "scan", "gpu": "parallel", "tpu": "parallel"}


def form(scan: Callable, parallel: Callable) -> Callable:
  """Picks the form of a recurrence by FORMS; an unlisted platform scans."""
  chosen = FORMS.get(platforms.current(), "scan")
  return {"scan": scan, "parallel": parallel}[chosen]


def _check(values: Array, mask: Array, starts: Array) -> None:
  chex.assert_rank([values, mask, starts], 1)
  chex.assert_equal_shape([values, mask, starts])
  chex.assert_type([values, mask, starts], [float, bool, bool])
