"""Golden intermediates of ratios and trust regions."""

import golden_losses
import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import divergences
from jaxrl_llm.losses import masked

CASES = loss_batches.CASES


@pytest.mark.parametrize(
    "case", [c for c in golden_losses.LOSSES if c.startswith("ctpo")]
)
def test_cumulative_ratios_positions_and_bounds(case):
  overrides, layout = golden_losses.LOSSES[case]
  wanted = CASES[case]
  with jax.enable_x64(True):
    spec = algorithms.build(overrides)
    batch = loss_batches.golden_terms(**layout)
    tokens, logs, region, _ = loss_batches.look(spec, batch)
    mask = np.asarray(tokens.layout.mask)
    loss_batches.near(np.exp(logs), wanted["rho_cum"], mask)
    loss_batches.near(tokens.layout.positions, wanted["position"], mask)
    signed = mask & (np.asarray(tokens.advantages) != 0)
    loss_batches.near(region.active, wanted["grad_active"], signed)
    # The prefix must be detached.
    assert not np.allclose(
        loss_batches.loss_and_gradient(spec, batch)[1],
        wanted["contrast_grad_if_prefix_not_detached"],
    )


@pytest.mark.parametrize(
    "case", ["cppo_paper_delta.15_deltab.02_fixed",
             "cppo_delta.23_deltab.14_T=length"]
)
def test_prefix_budget_walk(case):
  overrides, layout = golden_losses.LOSSES[case]
  wanted = CASES[case]
  with jax.enable_x64(True):
    spec = algorithms.build(overrides)
    batch = loss_batches.golden_terms(**layout)
    tokens, _, region, spending = loss_batches.look(spec, batch)
    loss_batches.near(spending.divergences, wanted["D"])
    loss_batches.near(spending.position_weights, wanted["w"])
    loss_batches.near(spending.costs, wanted["Z"])
    loss_batches.near(spending.budgets, wanted["c"])
    loss_batches.near(region.active & tokens.layout.mask, wanted["keep"])


def test_figure_1_of_cppo_is_another_rule():
  """The figure prints S_t/W_t ≤ δ_b; Eq 8 is what runs."""
  figure = CASES["cppo_figure1_variant_prefix_average"]
  equation = CASES["cppo_paper_delta.15_deltab.02_fixed"]
  costs, weights = np.array(figure["Z"]), np.array(figure["w"])
  sums = np.array(figure["S_prev"]) + costs
  within = sums <= 0.02 * (np.array(figure["W_prev"]) + weights)
  advantages = np.array(loss_batches.GOLDEN["inputs"]["adv_tok"])
  inputs = loss_batches.GOLDEN["inputs"]
  drift = np.subtract(inputs["logp_new"], inputs["logp_old"])
  toward = advantages * np.where(np.abs(drift) < 1e-12, 0, drift) <= 0
  kept = np.array(inputs["mask"]) & (toward | ((costs <= 0.15) & within))
  np.testing.assert_array_equal(kept, figure["keep"])
  assert figure["keep"] != equation["keep"]


def test_soft_gate():
  case = "cppo_soft_gate_delta.15_deltab.02"
  overrides, layout = golden_losses.LOSSES[case]
  with jax.enable_x64(True):
    spec = algorithms.build(overrides)
    batch = loss_batches.golden_terms(**layout)
    tokens, _, region, _ = loss_batches.look(spec, batch)
    loss_batches.near(region.gates, CASES[case]["gate"], tokens.layout.mask)


def test_dynamic_budget():
  wanted = CASES["cppo_dynamic_budget"]
  with jax.enable_x64(True):
    build = lambda **k: algorithms.build(
        {"name": "cppo_prefix", "budget": "dynamic", **k}
    )
    batch = loss_batches.golden_terms(small=True, role="behavior")
    spec = build()
    tokens, _, region, spending = loss_batches.look(spec, batch)
    mask = tokens.layout.mask
    first = lambda x: np.asarray(x)[:, 0]
    loss_batches.near(first(spending.rates), wanted["delta_b_seq"])
    assert not np.any(np.asarray(spending.rates)[~np.asarray(mask)])
    loss_batches.near(spending.divergences, wanted["D"])
    loss_batches.near(spending.budgets, wanted["c"])
    loss_batches.near(region.active & mask, wanted["keep"])
    batch = loss_batches.golden_terms(role="behavior")
    large, _, _, spending = loss_batches.look(spec, batch)
    quantiles = jax.jit(masked.sequence_quantiles)(
        spending.divergences, large.layout, 0.9
    )
    loss_batches.near(first(quantiles), wanted["large_drift_p90"])
    for cap, key in (
        (2.0, "large_drift_delta_b_seq(floor .02)"),
        (5.0, "large_drift_delta_b_seq(floor .02, 5x cap of commit 15a9da38)"),
    ):
      spec = build(delta_b=0.02, budget_cap=cap)
      rates = loss_batches.look(spec, batch)[3].rates
      loss_batches.near(first(rates), wanted[key])


def test_prefix_budget_edge_cases(monkeypatch):
  wanted = CASES["cppo_edge_cases"]
  with jax.enable_x64(True):
    spec = algorithms.build({"name": "cppo_prefix", "delta_b": 0.02})
    mask = jnp.asarray(wanted["mask"])
    zeros = jnp.zeros(mask.shape)
    batch = types.Terms(
        mask=mask, behavior_logprobs=zeros, logprobs=zeros + 0.1,
        advantages=zeros + 1.0,
    )
    measured = jnp.where(mask, jnp.asarray(wanted["D"]), 0.0)
    monkeypatch.setattr(
        divergences.Divergence, "divergences", lambda *_: measured
    )
    _, _, region, spending = loss_batches.look.__wrapped__(spec, batch)
    loss_batches.near(spending.position_weights, wanted["w"])
    loss_batches.near(spending.costs, wanted["Z"])
    loss_batches.near(spending.budgets, wanted["c"])
    loss_batches.near(region.active & mask, wanted["keep"])


def test_sequence_ratios():
  for case in ("gspo_wide_.2_.3", "gspo_token_wide_.2_.3"):
    overrides, layout = golden_losses.LOSSES[case]
    with jax.enable_x64(True):
      spec = algorithms.build(overrides)
      logs = loss_batches.look(spec, loss_batches.golden_terms(**layout))[1]
      loss_batches.near(np.exp(logs)[:, 0], CASES[case]["seq_ratio"])
  with jax.enable_x64(True):
    spec = algorithms.build({"name": "topr"})
    batch = loss_batches.golden_terms(role="behavior")
    logs = loss_batches.look(spec, batch)[1]
    wanted = CASES["topr_paper_sequence_ratio"]["seq_ratio"]
    loss_batches.near(np.exp(logs)[:, 0], wanted)


@pytest.mark.parametrize(
    "case", [c for c in golden_losses.LOSSES if c.startswith("acpo_adaptive")]
)
def test_adaptive_widths(case):
  overrides, layout = golden_losses.LOSSES[case]
  wanted = CASES[case]
  with jax.enable_x64(True):
    spec = algorithms.build(overrides)
    part = spec.trust_region
    batch = loss_batches.golden_terms(**layout)
    tokens, logs, _, _ = loss_batches.look(spec, batch)
    mask = np.asarray(tokens.layout.mask)
    members = np.asarray(part.bins(tokens))
    loss_batches.near(np.argmax(members, -1), wanted["bin"], mask)
    sums = part.statistics(logs, tokens)
    stats = wanted["bin_stats"]
    order = [s["bin"] for s in stats]
    assert list(np.asarray(sums["count"])[order]) == [s["n"] for s in stats]
    means = np.asarray(1 + sums["total"] / np.maximum(sums["count"], 1))
    loss_batches.near(means[order], [s["mean"] for s in stats])
    widths = np.asarray(part.widths(sums))[order]
    loss_batches.near(widths, [s["eps"] for s in stats])
