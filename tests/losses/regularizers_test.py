"""KL and entropy terms: values, expected gradients, own denominators."""

import dataclasses

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import regularizers

REFERENCE = jnp.log(jnp.array([0.7, 0.3]))


def _policy(theta):
  return jax.nn.log_softmax(jnp.stack([theta, 0.0]))


def _kl(left, right):
  return jnp.sum(jnp.exp(left) * (left - right))


TRUTHS = {
    "k1": lambda p: _kl(p, REFERENCE),
    "k2": lambda p: _kl(p, REFERENCE),
    "k3": lambda p: _kl(REFERENCE, p),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_expected_gradient_by_enumeration(name):
  """E_π[∇ estimator] is the gradient of the KL that the table names."""
  estimator = regularizers.ESTIMATORS[name]
  theta = -0.3

  def expectation(theta):
    drawn_from = jax.lax.stop_gradient(jnp.exp(_policy(theta)))
    return jnp.sum(drawn_from * estimator(_policy(theta), REFERENCE))

  found = jax.grad(expectation)(theta)
  wanted = jax.grad(lambda t: TRUTHS[name](_policy(t)))(theta)
  assert float(found) == pytest.approx(float(wanted), rel=1e-5)
  assert abs(float(wanted)) > 0.05


def test_values():
  """k1 and k3 are unbiased for KL(π‖ref); k2 is its second-order form."""
  live = _policy(-0.3)
  expect = lambda f: float(jnp.sum(jnp.exp(live) * f(live, REFERENCE)))
  truth = float(_kl(live, REFERENCE))
  assert expect(regularizers.k1) == pytest.approx(truth, rel=1e-5)
  assert expect(regularizers.k3) == pytest.approx(truth, rel=1e-5)
  gap = live - REFERENCE
  np.testing.assert_allclose(
      regularizers.k2(live, REFERENCE), gap**2 / 2, rtol=1e-6
  )


SLOPES = {
    "k1": lambda gap: gap, "k2": lambda gap: gap,
    "k3": lambda gap: 1 - np.exp(-gap),
}


@pytest.mark.parametrize("name", regularizers.ESTIMATORS)
def test_slope_of_each_token(name):
  """d estimator / d log π, not only its mean: ∇log π has mean 0 over π."""
  live, reference = jnp.array([-0.5, -1.0, -3.0]), jnp.array([-1.0, -1.0, -1.5])
  estimator = regularizers.ESTIMATORS[name]
  found = jax.grad(lambda x: jnp.sum(estimator(x, reference)))(live)
  np.testing.assert_allclose(
      found, SLOPES[name](np.asarray(live - reference)), rtol=1e-5, atol=1e-7
  )


def test_k3_is_clamped_at_twenty_nats():
  """exp stays finite; beyond ±20 nats nothing pulls."""
  gaps = jnp.array([-25.0, -20.0, 20.0, 25.0])
  k3 = lambda x: regularizers.k3(x, jnp.zeros(4))
  np.testing.assert_allclose(k3(gaps)[0], k3(gaps)[1])
  np.testing.assert_allclose(k3(gaps)[3], 19.0, rtol=1e-6)
  slopes = jax.grad(lambda x: jnp.sum(k3(x)))(gaps)
  np.testing.assert_allclose(slopes, [0, 1 - np.exp(20), 1, 0], rtol=1e-5)


@pytest.mark.parametrize("name", regularizers.ESTIMATORS)
def test_one_step_lowers_the_kl(name):
  """With A = 0 a step of gradient descent moves towards the reference."""
  spec = algorithms.build(
      {"name": "ppo", "kl_coefficient": 1.0, "kl_estimator": name}
  )
  # Token frequencies of the batch are those of the policy: 70 and 30 %.
  drawn = np.array([[0] * 7 + [1] * 3])
  reference = jnp.log(jnp.array([0.4, 0.6]))
  recorded = jnp.log(jnp.array([0.7, 0.3]))
  start = jnp.log(0.7 / 0.3)

  def loss(theta):
    batch = types.Terms(
        mask=jnp.ones((1, 10), bool),
        advantages=jnp.zeros((1, 10)),
        logprobs=_policy(theta)[drawn],
        proximal_logprobs=recorded[drawn],
        reference_logprobs=reference[drawn],
    )
    weights = objective.denominators(spec, batch)
    return objective.apply(spec, batch, weights).loss

  step = start - 0.1 * jax.grad(loss)(start)
  assert _kl(_policy(step), reference) < _kl(_policy(start), reference) - 1e-3


def test_each_term_has_its_own_denominator():
  """Rejected tokens leave the policy's count, not the regularizers'."""
  overrides = {
      "name": "ppo", "correction": "rejection", "kl_coefficient": 0.5,
      "kl_estimator": "k2", "entropy_coefficient": 0.25,
  }
  mask = np.array([[True, True, True, True, False]])
  batch = types.Terms(
      mask=jnp.asarray(mask),
      advantages=jnp.asarray([[1.0, 1, 1, 1, np.nan]]),
      logprobs=jnp.asarray([[-1.0, -1, -1, -1, np.nan]]),
      proximal_logprobs=jnp.asarray([[-1.0, -1, -1, -1, np.nan]]),
      # The first token's w is e², above 2: rejected.
      behavior_logprobs=jnp.asarray([[-3.0, -1, -1, -1, np.nan]]),
      reference_logprobs=jnp.asarray([[-2.0, -1, -1, -1, np.nan]]),
      entropy=jnp.asarray([[2.0, 0, 0, 0, np.nan]]),
  )
  spec = algorithms.build(overrides)
  weights = objective.denominators(spec, batch)
  np.testing.assert_allclose(weights["policy"][0], [0, 1 / 3, 1 / 3, 1 / 3, 0])
  np.testing.assert_allclose(weights["kl"][0], [0.25] * 4 + [0])
  metrics = types.finish_metrics(objective.apply(spec, batch, weights).metrics)
  assert metrics["loss/policy"] == pytest.approx(-1.0)
  assert metrics["loss/kl"] == pytest.approx(0.5 * 0.5 / 4)
  assert metrics["loss/entropy"] == pytest.approx(-0.25 * 2.0 / 4)
  assert metrics["loss"] == pytest.approx(-1 + 0.0625 - 0.125)
  assert metrics["rejected"] == pytest.approx(0.25)
  # Entropy over valid tokens only; logged KL without coefficient.
  assert metrics["entropy"] == pytest.approx(0.5)
  assert metrics["kl/reference"] == pytest.approx(0.125)
  original = algorithms.build(
      overrides | {"rejection_denominator": "original"}
  )
  kept = objective.denominators(original, batch)["policy"][0]
  np.testing.assert_allclose(kept, [0, 0.25, 0.25, 0.25, 0])


def test_controls_change_numbers_without_recompiling():
  spec = algorithms.build({"name": "ppo", "kl_coefficient": 0.1})
  traces = []

  @jax.jit
  def loss(batch):
    traces.append(1)
    weights = objective.denominators(spec, batch)
    return objective.apply(spec, batch, weights).loss

  batch = loss_batches.golden_terms(
      reference_logprobs=loss_batches.GOLDEN["inputs"]["logp_rollout"]
  )
  for clip, coefficient in ((0.1, 0.0), (0.3, 2.0)):
    controls = {
        "clip_high": jnp.asarray(clip),
        "kl_coefficient": jnp.asarray(coefficient),
    }
    found = loss(dataclasses.replace(batch, controls=controls))
    fixed = algorithms.build({
        "name": "ppo", "clip_high": clip, "kl_coefficient": coefficient + 1e-12
    })
    wanted = loss_batches.full_output(fixed, batch).loss
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
  assert len(traces) == 1
  with pytest.raises(ValueError, match="objective.gamma"):
    loss(dataclasses.replace(batch, controls={"gamma": jnp.asarray(1.0)}))
