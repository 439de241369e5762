"""Tokens exactly on a bound: kept where the interval is closed.

Ties are common on the first update, and the gradient of a clip at a tie is a
framework's convention (1, ½ or 0): the parts decide by explicit booleans. The
bounds here are hit exactly: at ratio 1, or at binary fractions of a nat.
"""

import dataclasses

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import corrections
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import ratios
from jaxrl_llm.losses import tokens as tokens_lib


def _one_token(log_ratio, advantage, role="proximal", **controls):
  """A single token with live = −1 nat + log_ratio, exactly."""
  fill = lambda x: jnp.full((1, 1), x, jnp.float32)
  return types.Terms(
      mask=jnp.ones((1, 1), bool),
      tokens=jnp.zeros((1, 1), jnp.int32),
      advantages=fill(advantage),
      logprobs=fill(-1.0 + log_ratio),
      controls={k: jnp.float32(v) for k, v in controls.items()},
      **{f"{role}_logprobs": fill(-1.0)},
  )


def _kept(overrides, batch):
  spec = algorithms.build(overrides)
  _, gradient = loss_batches.loss_and_gradient(spec, batch)
  return bool(gradient[0, 0] != 0)


# Bounds of exactly 1 come in as controls: config values lie beyond them.
@pytest.mark.parametrize("advantage,key,bound,narrower", [
    (1.0, "clip_high", 0.0, -1e-3),
    (-1.0, "clip_low", 0.0, -1e-3),
    (-1.0, "dual_clip", 1.0, 0.999),
])
def test_clip_keeps_its_bounds(advantage, key, bound, narrower):
  overrides = {"name": "ppo", "dual_clip": 3.0}
  assert _kept(overrides, _one_token(0.0, advantage, **{key: bound}))
  assert not _kept(overrides, _one_token(0.0, advantage, **{key: narrower}))


@pytest.mark.parametrize("advantage,log_ratio,overrides", [
    (1.0, 0.25, {"log_clip_high": 0.25}),
    (-1.0, -0.25, {"log_clip_low": 0.25}),
    (-1.0, 0.25, {"dual_log_clip": 0.25}),
])
def test_position_clip_keeps_its_bounds(advantage, log_ratio, overrides):
  build = {"name": "ctpo", **overrides}
  assert _kept(build, _one_token(log_ratio, advantage))
  assert not _kept(build, _one_token(log_ratio * 1.01, advantage))


@pytest.mark.parametrize("name", ["dppo_divergence", "cppo_prefix"])
@pytest.mark.parametrize("kind", ["binary_tv", "binary_kl"])
def test_divergence_at_delta_is_kept(name, kind):
  overrides = {"name": name, "divergence": kind, "delta": 0.1}
  batch = _one_token(0.5, 1.0, role="behavior")
  spec = algorithms.build(overrides)
  measured = jax.jit(
      lambda batch: spec.trust_region.divergences(tokens_lib.view(spec, batch))
  )(batch)
  exactly = float(measured[0, 0])
  below = np.nextafter(np.float32(exactly), np.float32(0))
  at = lambda bound: dataclasses.replace(
      batch, controls={"delta": jnp.float32(bound)}
  )
  assert _kept(overrides, at(exactly))
  assert not _kept(overrides, at(below))
  # Toward the anchor, or at ratio 1, nothing is cut.
  toward = _one_token(0.5, -1.0, role="behavior", delta=below)
  assert _kept(overrides, toward)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_product_at_alpha(advantage):
  overrides = {"name": "acpo_advantage", "alpha": 2.0}
  assert _kept(overrides, _one_token(0.0, advantage))
  assert not _kept(overrides, _one_token(1e-3, advantage))
  strict = overrides | {"boundary": "strict"}
  assert not _kept(strict, _one_token(0.0, advantage))


def test_taper_of_a_zero_reward():
  """topr: 0 lies on the positive branch; ROLL puts it on the negative."""
  for zero, wanted in (("positive", 1.0), ("negative", 0.5)):
    spec = algorithms.build({"name": "topr", "taper_zero": zero})
    batch = _one_token(np.log(0.5), 0.0, role="behavior")
    region = loss_batches.look(spec, batch)[2]
    assert float(region.values[0, 0]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_corrections_keep_their_bounds(level):
  where = masked.layout(jnp.ones((1, 2), bool), None, jnp.float32)
  logs = jnp.zeros((1, 2))
  for low, high, inside in (
      (1.0, 5.0, True), (0.5, 1.0, True), (1.01, 5.0, False), (0.5, 0.99, False)
  ):
    icepop = corrections.IcePop(low, high, correction_level=level)
    np.testing.assert_array_equal(icepop(logs, where), inside)
    for test in ("k1", "k1_inverse"):
      rejection = corrections.Rejection(
          high, low, rejection_level=level, rejection_statistic=test
      )
      np.testing.assert_array_equal(rejection.keeps(logs, where), inside)
  # ½ log²w = 2 at w = e², w − 1 − log w = e − 2 at w = e.
  e = float(jnp.exp(jnp.float32(1.0)))
  for test, log, high in (("k2", 2.0, 2.0), ("k3", 1.0, e - 1.0 - 1.0)):
    for bound, kept in ((high, True), (high * 0.999, False)):
      rejection = corrections.Rejection(bound, rejection_statistic=test)
      found = rejection.keeps(jnp.full((1, 2), log), where)
      np.testing.assert_array_equal(found, kept)


def test_sis_accepts_strictly_and_always_at_ratio_one():
  part = ratios.SelectiveImportanceSampling(selection_topk=1)
  spec = algorithms.build({"name": "sis", "selection_topk": 1})

  def accepts(log_ratio, log_uniform):
    batch = dataclasses.replace(
        _one_token(log_ratio, 1.0),
        topk_ids=jnp.zeros((1, 1, 1), jnp.int32),
        topk_logprobs=jnp.full((1, 1, 1), -0.5),
        topk_anchor_logprobs=jnp.full((1, 1, 1), -1.0),
    )
    tokens = tokens_lib.view(spec, batch)
    return bool(part.accepted(jnp.full((1, 1), log_uniform), tokens)[0, 0])

  # log M = 0.5: accepted below log r − 0.5.
  assert not accepts(0.25, -0.25)
  assert accepts(0.25, -0.25 - 2**-10)
  assert accepts(0.0, -2**-10)


def test_caps_of_sums():
  """+10 for a prefix, +20 for a sequence, ±20 a token; gradient 0 beyond."""
  cases = {
      "cumulative": (10.0, 10.5),
      "cumulative_mean": (10.0, 10.5),
      "sequence_mean_token": (10.0, 10.5),
      "sequence": (20.0, 20.0),
      "token": (20.0, 20.5),
  }
  for ratio, (cap, beyond) in cases.items():
    overrides = {"name": "ppo", "ratio": ratio, "trust_region": "none"}
    assert _kept(overrides, _one_token(cap, 1.0))
    spec = algorithms.build(overrides)
    batch = _one_token(beyond + 1.0, 1.0)
    logs = loss_batches.look(spec, batch)[1]
    assert float(logs[0, 0]) == cap
    assert not _kept(overrides, batch)
    # No lower cap on sums.
    two = jax.tree.map(lambda x: jnp.tile(x, (1, 2)), _one_token(-15.0, 1.0))
    logs = loss_batches.look(spec, two)[1]
    wanted = -30.0 if ratio in ("cumulative", "sequence") else -15.0
    assert float(logs[0, 1]) == wanted


def test_token_log_ratios_are_floored_too():
  """−20 nats keeps its gradient; below it the value stays, without one."""
  spec = algorithms.build({"name": "ppo", "trust_region": "none"})
  for log_ratio, kept in ((-20.0, True), (-20.5, False), (-1e4, False)):
    batch = _one_token(log_ratio, 1.0)
    assert float(loss_batches.look(spec, batch)[1][0, 0]) == -20.0
    _, gradient = loss_batches.loss_and_gradient(spec, batch)
    assert bool(gradient[0, 0] != 0) == kept


def test_caps_of_correction_weights():
  """log w is clamped to ±20 a token, and capped at +20 a sequence."""
  where = masked.layout(jnp.ones((1, 2), bool), None, jnp.float32)
  for gap, wanted in ((15.0, 15.0), (25.0, 20.0), (-25.0, -20.0)):
    batch = types.Terms(
        mask=where.mask,
        proximal_logprobs=jnp.full((1, 2), gap - 1.0),
        behavior_logprobs=jnp.full((1, 2), -1.0),
    )
    logs = tokens_lib.log_weights(batch, where)
    np.testing.assert_allclose(logs, wanted)
    for level, high in (("sequence", 20.0), ("geometric", wanted)):
      found = corrections.at_level(logs, where, level)
      expected = min(2 * wanted, high) if level == "sequence" else high
      np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("action", ["mask", "clamp"])
def test_a_decoupled_weight_at_its_cap_is_kept(action):
  where = masked.layout(jnp.ones((1, 1), bool), None, jnp.float32)
  for cap, kept in ((1.0, True), (0.999, False)):
    part = corrections.Decoupled(cap, action)
    beyond = 0.0 if action == "mask" else cap
    found = part(jnp.zeros((1, 1)), where)
    np.testing.assert_allclose(found, 1.0 if kept else beyond)


def test_adaptive_bins_are_closed_on_the_left():
  """Probability ½ lies in the second of two bins, by either policy."""
  half = float(np.log(np.float32(0.5)))
  assert float(jnp.exp(jnp.float32(half))) == 0.5
  tenth = float(np.log(np.float32(0.1)))
  for by in ("current", "behavior"):
    spec = algorithms.build({
        "name": "acpo_adaptive", "probability_bins": 2, "bin_by": by
    })
    fill = lambda x: jnp.full((1, 1), x, jnp.float32)
    values = {
        "logprobs": fill(tenth), "behavior_logprobs": fill(tenth),
        "proximal_logprobs": fill(tenth), "reference_logprobs": fill(tenth),
    }
    read = "logprobs" if by == "current" else "behavior_logprobs"
    batch = types.Terms(
        mask=jnp.ones((1, 1), bool), advantages=fill(1.0),
        **values | {read: fill(half)},
    )
    bins = spec.trust_region.bins(tokens_lib.view(spec, batch))
    np.testing.assert_array_equal(bins[0, 0], [False, True])


def test_adaptive_width_of_equal_ratios():
  """Rounding is not variance, and an empty bin keeps the base."""
  spec = algorithms.build({
      "name": "acpo_adaptive", "probability_bins": 2, "epsilon_min": 0.1,
      "epsilon_base": 0.05, "epsilon_slope": 1000.0,
  })
  part = spec.trust_region
  offset = np.float32(0.1)
  for count in (3, 7, 10, 1000):
    sums = {
        "count": jnp.array([count, 0.0], jnp.float32),
        "total": jnp.array([offset * count, 0.0], jnp.float32),
        "square": jnp.array([offset * offset * count, 0.0], jnp.float32),
    }
    # base + slope · sqrt(0 + 1e-8) = 0.05 + 0.1.
    np.testing.assert_allclose(part.widths(sums), [0.15, 0.05], rtol=1e-5)


def test_a_token_that_attains_the_sis_envelope_is_accepted():
  """Both are clamped alike: r / M = 1 at 30 nats too."""
  part = ratios.SelectiveImportanceSampling(selection_topk=1)
  spec = algorithms.build({"name": "sis", "selection_topk": 1})
  for log_ratio, wanted in ((30.0, True), (10.0, False)):
    batch = dataclasses.replace(
        _one_token(log_ratio, 1.0),
        topk_ids=jnp.zeros((1, 1, 1), jnp.int32),
        topk_logprobs=jnp.full((1, 1, 1), 29.0),
        topk_anchor_logprobs=jnp.full((1, 1, 1), -1.0),
    )
    tokens = tokens_lib.view(spec, batch)
    found = part.accepted(jnp.full((1, 1), -1.0), tokens)
    assert bool(found[0, 0]) == wanted


def test_adaptive_width_does_not_read_rounding_as_spread():
  """Ratios of 1.7 throughout, summed in float32: Σx² / n exceeds (Σx / n)²."""
  region = algorithms.build({"name": "acpo_adaptive"}).trust_region
  sums = lambda square: {
      "count": jnp.float32(1000), "total": jnp.float32(700),
      "square": jnp.float32(square),
  }
  second = np.nextafter(np.float32(490.00003), np.float32(1e3))
  still, rounded, spread = (
      float(region.widths(sums(x))) for x in (489.0, second, 500.0)
  )
  assert second / 1000 > np.float32(0.7) ** 2
  assert still == rounded < spread
