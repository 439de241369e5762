"""Masked sums, means and quantiles; accelerators' forms give the same."""

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import budgets
from jaxrl_llm.losses import kernels
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import tokens as tokens_lib

# Two sequences in the first row, one without response tokens; padding.
MASK = jnp.array([
    [True, False, True, True, True, False],
    [False, True, True, False, False, False],
])
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 0]])
VALUES = jnp.array([[1.0, 9, 2, 4, 8, 9], [9, 3, 5, 9, 9, 9]])


def _layout():
  return masked.layout(MASK, SEGMENTS, jnp.float32)


def _reductions():
  where = _layout()
  return (
      where.positions,
      where.lengths,
      masked.running_sums(VALUES, where),
      masked.sequence_sums(VALUES, where),
  )


def test_sums_by_hand():
  positions, lengths, running, whole = _reductions()
  np.testing.assert_array_equal(
      positions, [[1, 1, 2, 1, 2, 2], [0, 1, 2, 0, 0, 0]]
  )
  np.testing.assert_array_equal(
      lengths, [[2, 2, 2, 2, 2, 2], [2, 2, 2, 0, 0, 0]]
  )
  np.testing.assert_array_equal(
      running, [[1, 1, 3, 4, 12, 12], [0, 3, 8, 0, 0, 0]]
  )
  np.testing.assert_array_equal(
      whole, [[3, 3, 3, 12, 12, 12], [8, 8, 8, 0, 0, 0]]
  )
  # Tool tokens repeat a position, and one sequence has no response token.
  assert float(masked.sequence_count(_layout())) == 3


def test_accelerators_run_the_parallel_forms(monkeypatch):
  """The choice of `form`, made to fall on them, changes no value."""
  spec = algorithms.build({"name": "cppo_prefix"})
  rows = [[s] for s in loss_batches.sequences(31, count=3)]
  batch = loss_batches.pack(spec, rows, 8)

  def evaluate():
    tokens = tokens_lib.view(spec, batch)
    spending = spec.trust_region.spending(tokens)
    return (*_reductions(), spending.budgets, spending.shares)

  wanted = jax.jit(evaluate)()
  called = []
  for module, name in (
      (kernels, "cumulative_log_ratios_parallel"),
      (kernels, "last_values_parallel"),
      (kernels, "prefix_budgets_parallel"),
  ):
    kernel = getattr(module, name)
    spied = lambda *x, kernel=kernel, name=name: (
        called.append(name) or kernel(*x)
    )
    monkeypatch.setattr(module, name, spied)
  monkeypatch.setitem(kernels.FORMS, jax.default_backend(), "parallel")
  assert isinstance(spec.trust_region, budgets.PrefixBudget)
  found = jax.jit(lambda: evaluate())()
  assert len(set(called)) == 3
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted
  )


def test_quantiles_of_packed_sequences():
  """Linear as numpy's; 0 where a sequence has no response token."""
  where = _layout()
  garbage = jnp.where(MASK, VALUES, jnp.nan)
  for q in (0.0, 0.3, 0.9, 1.0):
    found = masked.sequence_quantiles(garbage, where, q)
    wanted = [
        [np.quantile(row, q)] * 3
        for row in ([1.0, 2.0], [4.0, 8.0], [3.0, 5.0])
    ]
    np.testing.assert_allclose(found[0], wanted[0] + wanted[1], rtol=1e-6)
    np.testing.assert_allclose(found[1], wanted[2] + [0.0] * 3, rtol=1e-6)


def test_clamps_have_gradient_one_on_their_bounds():
  slopes = lambda f, x: jax.grad(lambda x: jnp.sum(f(x)))(jnp.array(x))
  clamp = lambda x: masked.clamp(x, -2.0, 3.0)
  points = [-2.5, -2.0, 0.0, 3.0, 3.5]
  np.testing.assert_array_equal(clamp(jnp.array(points)), [-2, -2, 0, 3, 3])
  np.testing.assert_array_equal(slopes(clamp, points), [0, 1, 1, 1, 0])
  cap = lambda x: masked.cap(x, 3.0)
  np.testing.assert_array_equal(cap(jnp.array(points)), [-2.5, -2, 0, 3, 3])
  np.testing.assert_array_equal(slopes(cap, points), [1, 1, 1, 1, 0])


def test_aggregations_weigh_nothing_outside_the_mask():
  where = _layout()
  for name, kind in masked.AGGREGATIONS.items():
    part = kind(8.0) if name.endswith("norm") else kind()
    weights = np.asarray(part.weights(where))
    assert not np.any(weights[~np.asarray(MASK)]), name
    assert np.all(weights[np.asarray(MASK)] > 0), name


def test_restricting_renumbers_the_tokens():
  kept = masked.restrict(_layout(), VALUES > 1.5)
  np.testing.assert_array_equal(kept.positions[0], [0, 0, 1, 1, 2, 2])
  np.testing.assert_array_equal(kept.lengths[0], [1, 1, 1, 2, 2, 2])
  assert not np.any(kept.mask & ~MASK)
