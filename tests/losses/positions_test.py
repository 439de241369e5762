"""Curves by position are those of a numpy loop, however a batch is laid out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import positions
from jaxrl_llm.training import curves as curves_lib

# The longest response has 7 tokens: buckets 0 | 1 | 2-3 | 4-7 | 8-15.
EDGES = (0, 1, 2, 4, 8, 16)
WIDTH, ROWS = 16, 6
KEY = jax.random.key(3)


@functools.partial(jax.jit, static_argnums=0)
def _metric(spec, batch, weights, sums):
  return objective.apply(spec, batch, weights, sums).metrics["positions"]


@functools.partial(jax.jit, static_argnums=0)
def _first_pass(spec, batch):
  needs = objective.requirements(spec)
  sums = objective.statistics(spec, batch) if needs.statistics else None
  return objective.denominators(spec, batch), sums


def curves(spec, batch, pieces=1):
  """Curves of a mini-batch [ROWS, WIDTH], pooled over its micro-batches."""
  weights, sums = _first_pass(spec, batch)
  pooled = None
  for rows in np.array_split(np.arange(ROWS), pieces):
    mine = jnp.isin(jnp.arange(ROWS), rows)[:, None]
    piece = dataclasses.replace(batch, mask=batch.mask & mine)
    found = _metric(spec, piece, weights, sums)
    pooled = found if pooled is None else pooled.merge(found)
  return curves_lib.finish(pooled)


def pack(spec, rows, **layout):
  rows = rows + [[]] * (ROWS - len(rows))
  return loss_batches.pack(spec, rows, WIDTH, key=KEY, **layout)


def reference(sequences, anchor):
  """Values of each token by name, and their positions."""
  found = {name: [] for name in ("at", "log_ratio", "cumulative", "tv")}
  for sequence in sequences:
    total = 0.0
    for t in np.flatnonzero(sequence["mask"]):
      live = sequence["logprobs"][t]
      other = sequence[f"{anchor}_logprobs"][t]
      total += live - other
      found["at"].append(t)
      found["log_ratio"].append(live - other)
      found["cumulative"].append(total)
      found["tv"].append(abs(np.exp(live) - np.exp(other)))
  return {name: np.array(values) for name, values in found.items()}


def by_bucket(wanted):
  """Yields (bucket, bool over tokens) of the buckets that hold a token."""
  for number, (low, high) in enumerate(zip(EDGES, EDGES[1:])):
    inside = (wanted["at"] >= low) & (wanted["at"] < high)
    if inside.any():
      yield number, inside


def one_bin(value):
  """Half the width of the histogram's bin at a value: 4.6 % and 0.05 mnat."""
  return 0.046 * abs(value) + 5e-5


def same(found, wanted):
  assert found.keys() == wanted.keys()
  for name, row in wanted.items():
    if name in ("edges", "anchor"):
      assert found[name] == row
      continue
    assert [x is None for x in found[name]] == [x is None for x in row], name
    values = [[x or 0.0 for x in curve] for curve in (found[name], row)]
    np.testing.assert_allclose(*values, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("name", ["grpo", "ctpo", "cppo_prefix", "dpo"])
def test_curves_are_those_of_a_loop_over_tokens(name):
  spec = algorithms.build(loss_batches.overrides(name))
  sequences = loss_batches.sequences(4, count=6)
  found = curves(spec, pack(spec, [[s] for s in sequences]))
  assert found["edges"] == list(EDGES) and found["anchor"] == spec.anchor
  prefixes = {"": spec.anchor}
  if spec.anchor != "behavior":
    prefixes["behavior/"] = "behavior"
  for prefix, anchor in prefixes.items():
    wanted = reference(sequences, anchor)
    for number, inside in by_bucket(wanted):
      near = functools.partial(pytest.approx, rel=2e-5, abs=1e-6)
      assert found["tokens"][number] == inside.sum()
      for what in ("log_ratio", "cumulative"):
        values = wanted[what][inside]
        at = lambda curve: found[f"{prefix}{what}/{curve}"][number]
        assert at("mean") == near(values.mean())
        for q in (5, 25, 50, 75, 95):
          value = np.quantile(values, q / 100, method="inverted_cdf")
          assert abs(at(f"q{q:02d}") - value) <= one_bin(value)
      weights = np.exp(wanted["cumulative"][inside])
      size = weights.sum() ** 2 / np.square(weights).sum() / inside.sum()
      assert found[prefix + "ess"][number] == near(size)
      if not prefix:
        assert found["tv"][number] == near(wanted["tv"][inside].mean())
  empty = [number for number, n in enumerate(found["tokens"]) if n is None]
  assert empty == [4]
  for curve, row in found.items():
    if curve not in ("edges", "anchor"):
      assert row[4] is None and len(row) == 5, curve


def test_what_a_region_cuts_is_shown_beside_its_bounds():
  """ctpo: ε_hi √t at t = 1, 2, 3, 4 → 0.05, 0.0707, (0.0866 + 0.1) / 2.

  c_t = 0.06, 0.06, 0.06, −0.5: over the bound at t = 1 alone, where A > 0;
  under −0.05 at t = 4, where A > 0 is no reason to cut.
  """
  spec = algorithms.build({"name": "ctpo"})
  gaps = jnp.array([[0.06, 0.0, 0.0, -0.56]])
  batch = types.Terms(
      mask=jnp.ones((1, 4), bool),
      advantages=jnp.ones((1, 4)),
      logprobs=gaps - 1.0,
      proximal_logprobs=jnp.full((1, 4), -1.0),
  )
  weights = {"policy": jnp.array([[0.1, 0.2, 0.3, 0.4]])}
  found = curves_lib.finish(_metric(spec, batch, weights, None))
  assert found["edges"] == [0, 1, 2, 4]
  assert found["clip"] == [1, 0, 0]
  assert found["clip_high"] == [1, 0, 0] and found["clip_low"] == [0, 0, 0]
  high = [0.05, 0.0707107, (0.0866025 + 0.1) / 2]
  np.testing.assert_allclose(found["bound_high"], high, rtol=1e-5)
  np.testing.assert_allclose(
      found["bound_low"], -np.array(high) / 2, rtol=1e-5
  )
  # |a f A|: cut; 0.2 e^0.06 = 0.21237; 0.3 e^0.06 + 0.4 e^−0.5 = 0.56116.
  wanted = np.array([0, 0.21237, 0.56116]) / (0.21237 + 0.56116)
  np.testing.assert_allclose(found["contribution"], wanted, atol=1e-5)
  assert "budget" not in found and "behavior/ess" not in found
  batch = dataclasses.replace(batch, advantages=-jnp.ones((1, 4)))
  found = curves_lib.finish(_metric(spec, batch, weights, None))
  assert found["clip"] == [0, 0, 0.5] and found["clip_low"] == [0, 0, 0.5]


def _one_token(overrides, gap=0.0, advantage=1.0, role="proximal"):
  fill = lambda value: jnp.full((1, 1), value)
  batch = types.Terms(
      mask=jnp.ones((1, 1), bool),
      advantages=fill(advantage),
      logprobs=fill(gap - 1.0),
      **{f"{role}_logprobs": fill(-1.0)},
  )
  spec = algorithms.build(overrides)
  return curves_of_whole(spec, batch)


def curves_of_whole(spec, batch):
  weights, sums = _first_pass(spec, batch)
  return curves_lib.finish(_metric(spec, batch, weights, sums))


@pytest.mark.parametrize("overrides, low, high", [
    ({"name": "ppo"}, np.log(0.8), np.log(1.2)),
    ({"name": "dapo"}, np.log(0.8), np.log(1.28)),
    # ε of one ratio: the base 0.2, its std is √1e−8.
    ({"name": "acpo_adaptive"}, np.log(0.7997), np.log(1.2003)),
    # No ratio is below 1 − 1.5.
    ({"name": "ppo", "clip_low": 1.5}, None, np.log(1.2)),
])
def test_bounds_are_in_nats(overrides, low, high):
  found = _one_token(overrides)
  for name, wanted in (("bound_low", low), ("bound_high", high)):
    if wanted is None:
      assert found[name] == [None]
    else:
      assert found[name] == [pytest.approx(wanted, abs=1e-5)]


def test_regions_that_bound_no_ratio_have_no_bounds():
  for name in ("espo", "dppo_divergence", "cppo_prefix", "acpo_advantage"):
    role = algorithms.build({"name": name}).anchor
    found = _one_token({"name": name}, role=role)
    assert "bound_low" not in found and "bound_high" not in found
    assert ("budget" in found) == (name == "cppo_prefix")


def test_a_preference_loss_says_nothing_of_clipping():
  spec = algorithms.build({"name": "dpo"})
  sequences = loss_batches.sequences(4, count=6)
  found = curves(spec, pack(spec, [[s] for s in sequences]))
  assert {"tv", "ess", "tokens"} <= found.keys()
  assert not {"clip", "clip_low", "contribution", "bound_low"} & found.keys()


@pytest.mark.parametrize(
    "name", ["ctpo", "cppo_prefix", "sis", "acpo_adaptive", "sft", "dpo"]
)
def test_layout_and_splitting_change_nothing(name):
  """One row each, packed, padded left, garbage under masks, split in three."""
  spec = algorithms.build(loss_batches.overrides(name))
  sequences = loss_batches.sequences(5, count=6)
  wanted = curves(spec, pack(spec, [[s] for s in sequences]))
  pairs = [sequences[4:], sequences[:2], sequences[2:4]]
  for layout in ({}, {"left": 1, "garbage": np.nan}):
    for pieces in (1, 3):
      same(curves(spec, pack(spec, pairs, **layout), pieces), wanted)


@pytest.mark.parametrize("name", ["ctpo", "cppo_prefix", "grpo"])
def test_buckets_add_up_to_the_update(name):
  """Weighed by their tokens, the shares of all buckets are the scalars."""
  spec = algorithms.build(loss_batches.overrides(name))
  sequences = loss_batches.sequences(6, count=6, drift=1.5)
  batch = pack(spec, [[s] for s in sequences])
  scalars = types.finish_metrics(loss_batches.full_output(spec, batch).metrics)
  found = curves(spec, batch)
  counts = np.array([n or 0 for n in found["tokens"]])
  mean = lambda row: np.dot([x or 0.0 for x in row], counts) / counts.sum()
  assert counts.sum() == scalars["tokens"] and scalars["clip"] > 0
  pairs = {
      "clip": scalars["clip"],
      "clip_high": scalars["clip/high_positive"]
      + scalars["clip/high_negative"],
      "clip_low": scalars["clip/low_positive"] + scalars["clip/low_negative"],
  }
  if name == "cppo_prefix":
    pairs["budget"] = scalars["budget"]
  for curve, wanted in pairs.items():
    assert mean(found[curve]) == pytest.approx(wanted, rel=1e-4), curve
  assert np.nansum(np.array(found["contribution"], float)) == pytest.approx(1)


def test_positions_count_from_the_start_of_the_response():
  """Tokens before a window, and tool tokens, are passed over, not deleted."""
  spec = algorithms.build({"name": "ppo"})
  where = jnp.arange(8)[None]
  batch = types.Terms(
      mask=jnp.array([[False] * 5 + [True, False, True]]),
      response_positions=where,
      advantages=jnp.ones((1, 8)),
      logprobs=jnp.zeros((1, 8)),
      proximal_logprobs=jnp.zeros((1, 8)),
  )
  assert curves_of_whole(spec, batch)["tokens"] == [None, None, None, 2]


def test_contributions_sum_to_one_and_take_the_correction():
  """bypass_reinforce: a weight min(r, 2) and no ratio of its own.

  r = 4 and 1 with equal a and A: 2 / 3 and 1 / 3.
  """
  spec = algorithms.build({"name": "bypass_reinforce"})
  batch = types.Terms(
      mask=jnp.ones((1, 2), bool),
      advantages=jnp.array([[1.0, -1.0]]),
      logprobs=jnp.log(jnp.array([[0.8, 0.5]])),
      behavior_logprobs=jnp.log(jnp.array([[0.2, 0.5]])),
  )
  found = curves_of_whole(spec, batch)["contribution"]
  np.testing.assert_allclose(found, [2 / 3, 1 / 3], rtol=1e-5)


def test_extreme_weights_stay_finite():
  """Sums of 60 nats: the weight stops at e²⁰, the curve does not."""
  spec = algorithms.build({"name": "ppo"})
  batch = types.Terms(
      mask=jnp.ones((1, 3), bool),
      advantages=jnp.ones((1, 3)),
      logprobs=jnp.full((1, 3), -1.0),
      proximal_logprobs=jnp.full((1, 3), -101.0),
  )
  found = curves_of_whole(spec, batch)
  assert found["cumulative/mean"] == [20, 40, 60]
  np.testing.assert_allclose(found["ess"], 1.0, rtol=1e-5)
  assert found["cumulative/q50"][2] == pytest.approx(60, rel=0.046)


def test_nothing_seen_is_null():
  nothing = positions.Positions(
      {"tokens": np.zeros(2), "log_ratio": np.zeros(2)},
      {"log_ratio": np.zeros((2, positions.BINS))},
      "proximal",
  )
  empty = curves_lib.finish(nothing)
  assert empty["tokens"] == empty["log_ratio/q50"] == [None, None]
