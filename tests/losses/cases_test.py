"""Small inputs that other systems got wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import ratios
from jaxrl_llm.losses import tokens as tokens_lib

OUTCOME = {"advantage": "reward"}


def _terms(mask, advantages, log_ratios=0.0, **fields):
  mask = jnp.asarray(mask)
  fill = lambda x: jnp.broadcast_to(jnp.asarray(x, float), mask.shape)
  return types.Terms(
      mask=mask,
      advantages=fill(advantages),
      logprobs=fill(log_ratios) - 1.0,
      proximal_logprobs=fill(-1.0),
      behavior_logprobs=fill(-1.0),
      **fields,
  )


def _loss(overrides, batch):
  return loss_batches.loss_and_gradient(algorithms.build(overrides), batch)


def test_token_mean_is_that_of_the_mini_batch():
  """Lengths 1 and 3, A = +1 and −1: 0.5, in one piece or two."""
  mask = [[True, False, False], [True, True, True]]
  batch = _terms(mask, [[1.0], [-1.0]])
  spec = algorithms.build({"name": "ppo"})
  weights = objective.denominators(spec, batch)
  total = 0.0
  for row in range(2):
    take = lambda tree, i=row: jax.tree.map(lambda x: x[i : i + 1], tree)
    total += objective.apply(spec, take(batch), take(weights)).loss
  (whole, _), gradient = _loss({"name": "ppo"}, batch)
  assert float(whole) == pytest.approx(0.5)
  assert float(total) == pytest.approx(0.5)
  np.testing.assert_allclose(
      gradient, [[-0.25, 0, 0], [0.25, 0.25, 0.25]], rtol=1e-6
  )


@pytest.mark.parametrize("ratio,wanted", [(0.5, 0.8), (2.0, 2.0)])
def test_clip_with_a_negative_advantage(ratio, wanted):
  """0.7, S1: A = −1, ε = 0.2; `max` gives 0.5 and 1.2."""
  batch = _terms([[True]], -1.0, np.log(ratio))
  (loss, _), _ = _loss({"name": "ppo"}, batch)
  assert float(loss) == pytest.approx(wanted)


def test_cispo_weight_is_detached_and_absolute():
  """Bound 5 is absolute, ratio 3 weighs 3, gradient 3 A."""
  batch = _terms([[True]], 0.5, np.log(3.0))
  _, gradient = _loss({"name": "cispo", "weight_max": 5.0}, batch)
  assert float(gradient[0, 0]) == pytest.approx(-3 * 0.5, rel=1e-6)
  batch = _terms([[True]], 0.5, np.log(9.0))
  _, gradient = _loss({"name": "cispo", "weight_max": 5.0}, batch)
  assert float(gradient[0, 0]) == pytest.approx(-5 * 0.5, rel=1e-6)


def test_metrics_show_the_ratio_that_the_gradient_takes():
  """Cispo: ratio 3, w = 1.2. Sapo, A < 0, τ = 1.05: 4 p (1 − p) 3 = 1.1664.

  p = σ(1.05 · 2) = 0.89090; 4 · 0.89090 · 0.10910 = 0.38879.
  """
  batch = _terms([[True]], -1.0, np.log(3.0))
  for name, gate, after in (("cispo", 1.0, 1.2), ("sapo", 0.38879, 1.16637)):
    _, gradient = _loss({"name": name}, batch)
    spec = algorithms.build({"name": name})
    found = types.finish_metrics(loss_batches.full_output(spec, batch).metrics)
    assert found["ratio_max"] == pytest.approx(3.0)
    assert found["gate"] == pytest.approx(gate, rel=1e-4)
    assert found["ratio_after/mean"] == pytest.approx(after, rel=1e-4)
    assert float(gradient[0, 0]) == pytest.approx(after, rel=1e-4)


def test_effective_sample_size_is_pooled():
  """Weights 1 and 2 in two micro-batches: 0.9; 1 and 10: 0.599."""
  spec = algorithms.build({"name": "ppo"})
  for high, wanted in ((2.0, 0.9), (10.0, 0.599)):
    halves = []
    for ratio in (1.0, high):
      batch = _terms([[True] * 4], 1.0, np.log(ratio))
      weights = {"policy": jnp.ones((1, 4))}
      halves.append(objective.apply(spec, batch, weights).metrics)
    merged = types.finish_metrics(types.merge_metrics(*halves))
    assert merged["ess/ess"] == pytest.approx(wanted, abs=5e-4)


def test_effective_sample_size_is_that_of_live_over_behavior():
  """Ratios 1 and 3 to behavior, 1 and 1 to proximal: 16 / (2 · 10)."""
  logs = jnp.log(jnp.array([[1.0, 3.0]]))
  batch = types.Terms(
      mask=jnp.ones((1, 2), bool), advantages=jnp.ones((1, 2)), logprobs=logs,
      proximal_logprobs=logs, behavior_logprobs=jnp.zeros((1, 2)),
  )
  spec = algorithms.build({"name": "ppo"})
  found = types.finish_metrics(loss_batches.full_output(spec, batch).metrics)
  assert found["ess/ess"] == pytest.approx(0.8)


def test_sum_and_mean_of_log_ratios_are_two_ratios():
  """0.01 a token over 100 tokens: e¹ and 1.01, at any length."""
  for length in (10, 100):
    batch = _terms([[True] * length], 1.0, 0.01)
    for ratio, wanted in (
        ("sequence", np.exp(0.01 * length)), ("sequence_mean", np.exp(0.01))
    ):
      spec = algorithms.build({"name": "rloo", "ratio": ratio})
      logs = loss_batches.look(spec, batch)[1]
      np.testing.assert_allclose(np.exp(logs), wanted, rtol=1e-5)


@pytest.mark.parametrize("ratio", ["sequence", "sequence_mean"])
def test_sequence_gradients_by_finite_differences(ratio):
  """No stop-gradient trick; d loss is what the formula says."""
  spec = algorithms.build(
      {"name": "rloo", "ratio": ratio, "trust_region": "none"}
  )
  with jax.enable_x64(True):
    batch = loss_batches.golden_terms(small=True, advantages="adv_seq")
    _, gradient = loss_batches.loss_and_gradient(spec, batch)
    move = lambda i, h: dataclasses.replace(
        batch, logprobs=batch.logprobs.at[0, i].add(h)
    )
    for i in (0, 3):
      high, low = (
          loss_batches.loss_and_gradient(spec, move(i, h))[0][0]
          for h in (1e-6, -1e-6)
      )
      difference = float(high - low) / 2e-6
      assert float(gradient[0, i]) == pytest.approx(difference, rel=1e-6)


HOSTS = ["ppo", "gspo", "ctpo", "cispo", "sapo", "acpo_advantage"]
CORRECTIONS = {
    "tis": {"correction_cap": 1.1},
    "icepop": {"correction_low": 0.9, "correction_high": 1.1},
    "decoupled": {},
    "rejection": {"rejection_high": 1.2},
}


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("host", HOSTS)
def test_every_correction_reaches_every_loss(host, correction):
  """Setting an option changes the gradient."""
  with jax.enable_x64(True):
    batch = loss_batches.golden_terms(small=True, advantages="adv_seq")
    inputs = loss_batches.GOLDEN["inputs"]
    batch = dataclasses.replace(
        batch,
        proximal_logprobs=jnp.asarray(inputs["logp_old_small"]),
        behavior_logprobs=jnp.asarray(inputs["logp_rollout"]),
        logprobs=jnp.asarray(inputs["logp_old_small"]) + 0.0002,
    )
    corrected = {"correction": correction, **CORRECTIONS[correction]}
    _, plain = _loss({"name": host}, batch)
    _, found = _loss({"name": host, **corrected}, batch)
  assert np.linalg.norm(found - plain) > 0.05 * np.linalg.norm(plain) > 0


def test_a_weight_has_one_value_per_token_of_its_row():
  """Sequence weights [N] never broadcast along the wrong axis (B = T)."""
  spec = algorithms.build(
      {"name": "ppo", "correction": "tis", "correction_level": "sequence",
       "correction_cap": 100.0}
  )
  mask = jnp.ones((2, 2), bool)
  batch = _terms(mask, 1.0)
  batch = dataclasses.replace(
      batch, behavior_logprobs=batch.behavior_logprobs.at[0].add(-1.0)
  )
  losses, _ = objective.token_losses(spec, batch)
  np.testing.assert_allclose(losses, [[-np.exp(2)] * 2, [-1, -1]], rtol=1e-5)


@pytest.mark.parametrize("overrides,wanted", [
    ({"correction": "tis"}, 2 / 4),  # 3 and 6 exceed the cap of 2.
    ({"correction": "icepop"}, 2 / 4),  # 0.25 and 6 leave [0.5, 5].
    ({"correction": "decoupled"}, 0.0),
    ({"correction": "decoupled", "decoupled_cap": 5.0}, 1 / 4),
])
def test_share_of_cut_correction_weights(overrides, wanted):
  weights = np.array([[1.0, 3.0, 0.25, 6.0, 99.0]])
  batch = _terms([[True] * 4 + [False]], 1.0)
  batch = dataclasses.replace(batch, behavior_logprobs=-1.0 - np.log(weights))
  spec = algorithms.build({"name": "ppo"} | overrides)
  found = types.finish_metrics(loss_batches.full_output(spec, batch).metrics)
  assert found["correction_cut"] == pytest.approx(wanted)


@pytest.mark.parametrize("mode", masked.AGGREGATIONS)
def test_nothing_but_padding_gives_zero(mode):
  """An empty mini-batch has loss and gradient 0, never NaN."""
  overrides = {"name": "ppo", "aggregation": mode}
  if mode == "seq-mean-token-sum-norm":
    overrides["horizon"] = 4.0
  batch = _terms(np.zeros((2, 3), bool), np.nan, np.nan)
  (loss, _), gradient = _loss(overrides, batch)
  assert float(loss) == 0
  np.testing.assert_array_equal(gradient, np.zeros((2, 3)))


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_corrections_of_nothing_but_padding(level):
  """Neither a row without tokens nor a batch of such rows gives NaN."""
  overrides = {
      "name": "ppo", "correction": "tis", "correction_normalize": True,
      "correction_level": level,
  }
  for rows in ([False, False], [True, False]):
    mask = np.array(rows)[:, None] & np.ones((2, 3), bool)
    values = np.where(mask, 1.0, np.nan)
    (loss, _), gradient = _loss(overrides, _terms(mask, values, values - 1.0))
    assert float(loss) == pytest.approx(-float(rows[0]))
    np.testing.assert_allclose(gradient, np.where(mask, -1 / 3, 0), rtol=1e-6)


def test_a_cut_token_has_no_log_prob_loss():
  """log_prob and weighted_log_prob drop it, value and gradient."""
  for surrogate in ("log_prob", "weighted_log_prob"):
    batch = _terms([[True, True]], 1.0, np.log([[1.5, 1.1]]))
    (_, losses), gradient = _loss(
        {"name": "ppo", "surrogate": surrogate}, batch
    )
    assert losses[0, 0] == gradient[0, 0] == 0
    assert losses[0, 1] > 0 > gradient[0, 1]


@pytest.mark.parametrize("mode", masked.AGGREGATIONS)
def test_a_fully_masked_row_changes_nothing(mode):
  """An empty sequence leaves every count."""
  overrides = {"name": "ppo", "aggregation": mode}
  if mode == "seq-mean-token-sum-norm":
    overrides["horizon"] = 4.0
  mask = np.array([[True, True, False], [True, True, True], [False] * 3])
  values = np.array([[0.5, 0.1, np.nan], [-1, 2, 1], [np.nan] * 3])
  (with_row, _), _ = _loss(overrides, _terms(mask, values))
  (without, _), _ = _loss(overrides, _terms(mask[:2], values[:2]))
  assert float(with_row) == pytest.approx(float(without))


def test_fully_rejected_rows_leave_the_sequence_count():
  batch = _terms(np.ones((2, 2), bool), [[1.0], [3.0]])
  moved = batch.behavior_logprobs.at[0].add(-2.0)
  batch = dataclasses.replace(batch, behavior_logprobs=moved)
  (loss, _), _ = _loss({"name": "grpo", "correction": "mis"}, batch)
  assert float(loss) == pytest.approx(-3.0)


def test_shares_of_cut_tokens_by_side_and_sign():
  """Each token lands in one share; the rest of the tokens in none."""
  ratios = np.array([[1.5, 0.5, 1.5, 0.5, 1.0, 4.0, 9.0]])
  advantages = np.array([[1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 1.0]])
  mask = np.array([[True] * 6 + [False]])
  batch = _terms(mask, advantages, np.log(ratios))
  spec = algorithms.build({"name": "ppo", "dual_clip": 3.0})
  found = types.finish_metrics(loss_batches.full_output(spec, batch).metrics)
  wanted = {
      "clip/high_positive": 1 / 6,  # ratio 1.5, A > 0
      "clip/low_positive": 0.0,
      "clip/high_negative": 1 / 6,  # ratio 4, dual clip
      "clip/low_negative": 1 / 6,  # ratio 0.5, A < 0
      "clip": 0.5,
      "ratio/mean": 1.5,
      "ratio_max": 4.0,
      "ratio_after_max": 3.0,
      "tokens": 6.0,
  }
  for key, value in wanted.items():
    assert found[key] == pytest.approx(value, rel=1e-5), key


def test_equal_policies_are_at_distance_zero():
  """And the KL estimates of unequal ones have their sign and size."""
  spec = algorithms.build({"name": "ppo"})
  still = loss_batches.full_output(spec, _terms([[True, True]], 1.0))
  found = types.finish_metrics(still.metrics)
  for name in ("behavior", "proximal"):
    assert found[f"kl/{name}_k1"] == found[f"kl/{name}_k3"] == 0
    assert found[f"log_ratio_max/{name}"] == 0
  moved = loss_batches.full_output(spec, _terms([[True, True]], 1.0, -0.5))
  found = types.finish_metrics(moved.metrics)
  assert found["kl/behavior_k1"] == pytest.approx(0.5)
  assert found["kl/proximal_k3"] == pytest.approx(np.exp(-0.5) - 0.5, rel=1e-5)


def test_budget_use_is_reported():
  spec = algorithms.build({"name": "cppo_prefix", "delta_b": 0.02})
  batch = loss_batches.golden_terms(role="behavior")
  case = loss_batches.CASES["cppo_paper_delta.15_deltab.02_fixed"]
  found = types.finish_metrics(loss_batches.full_output(spec, batch).metrics)
  allowed = 0.15 + 0.02 * np.array(case["W_prev"])
  mask = np.array(loss_batches.GOLDEN["inputs"]["mask"])
  shares = ((np.array(case["S_prev"]) + np.array(case["Z"])) / allowed)[mask]
  assert found["budget"] == pytest.approx(shares.mean(), rel=1e-5)
  assert found["budget_max"] == pytest.approx(shares.max(), rel=1e-5)


def test_noise_follows_the_record_not_the_batch():
  """The draw depends on (key, record, position) alone."""
  spec = algorithms.build({"name": "sis", "selection_topk": 4})
  rows = [[s] for s in loss_batches.sequences(1, count=3)]
  key = jax.random.key(5)
  draw = jax.jit(lambda batch: ratios.uniforms(tokens_lib.view(spec, batch)))
  one = draw(loss_batches.pack(spec, rows, 8, key=key))
  packed = draw(loss_batches.pack(spec, rows[::-1], 8, key=key))
  other = draw(loss_batches.pack(spec, rows, 8, key=jax.random.key(6)))
  for i, row in enumerate(rows):
    length = len(row[0]["mask"])
    np.testing.assert_array_equal(one[i, :length], packed[2 - i, :length])
    assert len(np.unique(one[i, :length])) == length
  assert not np.any(np.asarray(one) == np.asarray(other))


def test_the_geometric_mean_is_that_of_the_prefix():
  """0.1, 0.3, a tool token, −0.1: means 0.1, 0.2, 0.1 of what is behind."""
  spec = algorithms.build({"name": "ctpo_geomean"})
  mask = np.array([[True, True, False, True]])
  batch = _terms(mask, 1.0, np.array([[0.1, 0.3, np.nan, -0.1]]))
  _, logs, _, _ = loss_batches.look(spec, batch)
  np.testing.assert_allclose(
      np.asarray(logs)[mask], [0.1, 0.2, 0.1], rtol=1e-5
  )


def test_weights_under_the_mask_reach_no_term():
  spec = algorithms.build({"name": "grpo", "kl_coefficient": 0.1})
  mask = np.array([[True, True, False]])
  batch = dataclasses.replace(
      _terms(mask, 1.0), weights=jnp.array([[2.0, 1.0, jnp.nan]])
  )
  weights = objective.denominators(spec, batch, weigh_all=True)
  for name in ("policy", "kl"):
    np.testing.assert_allclose(weights[name], [[1.0, 0.5, 0.0]])
