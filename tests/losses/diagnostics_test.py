"""Metrics of cut, gated and extreme tokens."""

import dataclasses

import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective

SIDES = [f"clip/{a}_{b}" for a in ("high", "low") for b in (
    "positive", "negative"
)]


def _terms(mask, advantages, log_ratios, role="proximal", anchor=-1.0):
  mask = jnp.asarray(mask)
  fill = lambda x: jnp.broadcast_to(jnp.asarray(x, float), mask.shape)
  return types.Terms(
      mask=mask, advantages=fill(advantages),
      logprobs=fill(log_ratios) + anchor,
      **{f"{role}_logprobs": fill(anchor)},
  )


def _metrics(overrides, batch):
  spec = algorithms.build(overrides)
  return types.finish_metrics(loss_batches.full_output(spec, batch).metrics)


@pytest.mark.parametrize("overrides", [
    {"name": "ppo", "dual_clip": 3.0},
    {"name": "ctpo", "dual_log_clip": 0.05},
    {"name": "dppo_divergence"},
    {"name": "cppo_prefix"},
], ids=lambda overrides: overrides["name"])
def test_an_advantage_of_zero_is_never_cut(overrides):
  """Neither sign of A: however far the ratio, nothing is away from it."""
  role = algorithms.build(overrides).anchor
  far = np.array([[1.5, -3.0, 1.5, 0.0]])
  terms = lambda advantages: _terms([[True] * 4], advantages, far, role, -3.0)
  assert _metrics(overrides, terms(0.0))["clip"] == 0
  # The same ratios are cut where A says away.
  assert _metrics(overrides, terms(np.sign(far)))["clip"] > 0


def test_a_ratio_of_one_is_on_no_side():
  """acpo_advantage cuts |A| > α at ratio 1 too: in `clip`, on neither side."""
  batch = _terms([[True, True]], np.array([[4.0, -4.0]]), 0.0)
  found = _metrics({"name": "acpo_advantage", "alpha": 3.0}, batch)
  assert found["clip"] == 1
  assert [found[side] for side in SIDES] == [0, 0, 0, 0]


def test_a_token_at_ratio_one_stays_when_the_prefix_is_overspent():
  """A (r − 1) = 0 is not away: only the first token may spend the budget."""
  batch = _terms([[True] * 3], 1.0, np.array([[0.9, 0.0, 0.1]]), "behavior")
  spec = algorithms.build({"name": "cppo_prefix"})
  for sign in (1.0, -1.0):
    signed = dataclasses.replace(
        batch, advantages=sign * batch.advantages
    )
    _, _, region, spending = loss_batches.look(spec, signed)
    assert float(spending.budgets[0, 1]) < 0
    wanted = [False, True, False] if sign > 0 else [True, True, True]
    np.testing.assert_array_equal(region.active[0], wanted)


def test_gates_are_averaged_over_response_tokens():
  """Padding has gate 1 and takes no part."""
  overrides = {"name": "cppo_prefix", "gate": "soft"}
  mask = [[True, True, False, False]]
  batch = _terms(mask, 1.0, np.array([[0.9, 0.9, 0.0, 0.0]]), "behavior")
  spec = algorithms.build(overrides)
  gates = np.asarray(loss_batches.look(spec, batch)[2].gates)
  assert np.all(gates[0, :2] < 0.9)
  found = _metrics(overrides, batch)
  assert found["gate"] == pytest.approx(gates[0, :2].mean(), rel=1e-5)


@pytest.mark.parametrize("jump", [-1e4, 1e4])
def test_metrics_of_extreme_tokens_are_finite(jump):
  """Estimates with exp are clamped at ±20 nats, the gap itself is not."""
  batch = _terms([[True, True]], 1.0, np.array([[0.0, jump]]))
  batch = dataclasses.replace(
      batch, behavior_logprobs=batch.proximal_logprobs
  )
  found = _metrics({"name": "ppo"}, batch)
  for name in ("behavior", "proximal"):
    assert found[f"log_ratio_max/{name}"] == pytest.approx(1e4)
    assert found[f"kl/{name}_k1"] == pytest.approx(-jump / 2)
    limit = 20.0 * np.sign(jump)
    k3 = (np.exp(limit) - 1 - limit) / 2
    assert found[f"kl/{name}_k3"] == pytest.approx(k3, rel=1e-5)
  assert np.isfinite(found["ess/ess"])


def test_a_deviation_at_the_limit_does_not_stop():
  spec = algorithms.build({"name": "espo", "stop_deviation": 0.25})
  assert not objective.should_stop(spec, {"ratio_deviation": 0.25})
  assert objective.should_stop(spec, {"ratio_deviation": 0.2501})
