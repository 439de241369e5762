"""The papers' statements hold, and an altered formula or library is noticed."""

import dataclasses

from experiments.theory import acpo_second_moment
from experiments.theory import cumulative_ratio
from experiments.theory import prefix_budget
from experiments.theory import report
from experiments.theory import saturation
from experiments.theory import sis_bias
from experiments.theory import sqrt_growth
from experiments.theory import tabular
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.losses import divergences
from jaxrl_llm.losses import kernels
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import ratios
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import trust_regions

SMALL = {
    cumulative_ratio: {"vocabulary": 2, "length": 4},
    sqrt_growth: {"count": 4000, "length": 128},
    prefix_budget: {"longest": 3, "repeats": 2},
    sis_bias: {"vocabulary": 4, "draws": 4096},
    acpo_second_moment: {"count": 4096},
}
PROGRAMS = {module.__name__.split(".")[-1]: module for module in SMALL}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_statement_holds(name):
  module = PROGRAMS[name]
  found = module.check(**SMALL[module])
  assert not found.failed()


def _prefix_not_detached(self, log_ratios, where):
  return masked.running_sums(log_ratios, where)


def _token_ratio(self, log_ratios, where):
  return log_ratios


def _halved_bound(length, reach, rate):
  return prefix_budget.XI * length * (length - 1) * reach * rate


def _budget_without_minimum(spent, allowances, mask, starts, delta):
  sums = kernels.cumulative_log_ratios
  total = sums(spent, mask, starts) - spent
  allowed = sums(allowances, mask, starts) - allowances
  left = delta + allowed - total
  return left, left


def _total_variation_without_half(anchor, live):
  return jnp.sum(jnp.abs(jnp.exp(anchor) - jnp.exp(live)), axis=-1)


def _accepts_without_envelope(self, log_uniforms, tokens):
  return log_uniforms < tokens.log_ratios()


def _cuts_by_advantage(self, log_ratios, tokens, statistics):
  kept = jnp.abs(tokens.advantages) <= self.alpha
  values = jnp.exp(jax.lax.stop_gradient(log_ratios))
  return surrogates.Region(
      kept, jnp.where(kept, values, 0.0), jnp.ones_like(values)
  )


def _weight_over_squared_envelope(p, q):
  return 1.0 - (np.sum(p**2 / q) - 1.0) / np.max(p / q) ** 2


def _bias_of_other_sign(p, q, f):
  return p @ f - (p @ f - p @ (p / q * f)) / np.max(p / q)


# Where, what, what instead, and a claim that must fail.
STATEMENTS = {
    "rewards for values": (
        cumulative_ratio, tabular, "action_values",
        lambda weights, outcomes, everything: np.repeat(
            outcomes[:, None], everything.tokens.shape[1], axis=1
        ),
        "prefix ratio × Q^π, summed over t: entry of ∇J(π)",
    ),
    "variance as a sum of χ²": (
        cumulative_ratio, cumulative_ratio, "independent_variances",
        lambda behavior, live: np.cumsum(
            np.sum(np.exp(2 * live - behavior), axis=1) - 1.0
        ),
        "Var r_{1:t} of independent tokens",
    ),
    "exponent 0.6": (
        sqrt_growth, sqrt_growth, "spread",
        lambda sigma, positions: sigma * positions**0.6,
        "std of c_t / (σ √t)",
    ),
    "bounds that grow with t": (
        sqrt_growth, sqrt_growth, "GROWING", {"name": "ctpo", "power": 1.0},
        "late share / share at t = 1, √t bounds",
    ),
    "half the bound": (
        prefix_budget, prefix_budget, "penalty", _halved_bound,
        "Δ / bound, T ≥ 2",
    ),
    "T² for T (T − 1)": (
        prefix_budget, prefix_budget, "penalty",
        lambda length, reach, rate: (
            2.0 * prefix_budget.XI * length**2 * reach * rate
        ),
        "Δ / bound at T = 2: attained",
    ),
    "no slack": (
        prefix_budget, prefix_budget, "slack_penalty", lambda *_: 0.0,
        "Δ / (bound + slack) under Eq 8",
    ),
    "policies that ignore the prefix": (
        prefix_budget, saturation, "theorem_limits", saturation.eager_limits,
        "largest breach of the conditions",
    ),
    "1 − χ²/M²": (
        sis_bias, sis_bias, "mean_weight", _weight_over_squared_envelope,
        "E_q[w]: 1 − χ²/M",
    ),
    "bias of the other sign": (
        sis_bias, sis_bias, "expectation", _bias_of_other_sign,
        "E_q[w f] drawn, standard errors off",
    ),
    "α that retains one token more": (
        acpo_second_moment, acpo_second_moment, "level",
        lambda sizes, count: float(
            np.sort(sizes)[min(count, len(sizes) - 1)]
        ),
        "share retained, ACPO as PPO",
    ),
    "|r A| − α, not squared": (
        acpo_second_moment, acpo_second_moment, "predicted_gap",
        lambda sizes, ppo, acpo, alpha: float(
            np.mean(np.where(ppo != acpo, np.abs(sizes - alpha), 0.0))
        ),
        "(PPO − ACPO) / PPO, as the differing tokens say",
    ),
    "advantages left unscaled": (
        acpo_second_moment, acpo_second_moment, "norm_scaled",
        lambda advantages, alpha: advantages,
        "on-policy share retained, A scaled by Algorithm 1",
    ),
}
LIBRARY = {
    "the prefix carries gradient": (
        cumulative_ratio, ratios.Cumulative, "__call__", _prefix_not_detached,
        "prefix ratio: bias at any t",
    ),
    "the prefix is left out": (
        cumulative_ratio, ratios.Cumulative, "__call__", _token_ratio,
        "Var r_{1:t} of independent tokens",
    ),
    "the sum is left out": (
        sqrt_growth, ratios.Cumulative, "__call__", _token_ratio,
        "fitted exponent of the std",
    ),
    "budgets above δ": (
        prefix_budget, kernels, "prefix_budgets", _budget_without_minimum,
        "ℓ̄ = max c_t / ω_t, which is δ / ω_min",
    ),
    "total variation without ½": (
        prefix_budget, divergences, "total_variation",
        _total_variation_without_half, "largest breach of the conditions",
    ),
    "acceptance without the envelope": (
        sis_bias, ratios.SelectiveImportanceSampling, "accepted",
        _accepts_without_envelope, "acceptance rate: 1/M",
    ),
    "clipping A, not r A": (
        acpo_second_moment, trust_regions.ProductClip, "__call__",
        _cuts_by_advantage, "share retained, ACPO as PPO",
    ),
}


@pytest.mark.parametrize("alteration", list(STATEMENTS))
def test_altered_statement_fails(alteration, monkeypatch):
  module, owner, name, instead, claim = STATEMENTS[alteration]
  monkeypatch.setattr(owner, name, instead)
  assert claim in module.check(**SMALL[module]).failed()


def test_exit_code_and_picture(tmp_path, capsys):
  claims = [report.equal("one", 1.0, 1.0, 0.1), report.at_most("two", 3.0, 2)]
  line = report.Line("line", np.arange(3), np.arange(3))
  found = report.Report(claims, [report.Panel("panel", "x", [line])])
  path = tmp_path / "deep/x.png"
  assert report.main("x", lambda: found, [f"--png={path}"]) == 1
  printed = capsys.readouterr().out.splitlines()
  assert printed[0].startswith("ok") and printed[1].startswith("FAIL")
  assert path.read_bytes().startswith(b"\x89PNG")
  good = dataclasses.replace(found, claims=claims[:1])
  assert report.main("x", lambda: good, [f"--png={path}"]) == 0


@pytest.mark.parametrize("make,holds,fails", [
    (lambda x: report.equal("", [0.0, x], 1.0, 1.0), 1.5, 2.5),
    (lambda x: report.at_most("", [0.0, x], 1.0), 1.0, 1.1),
    (lambda x: report.above("", [2.0, x], 1.0), 1.1, 1.0),
])
def test_claims_judge_the_worst_entry(make, holds, fails):
  assert make(holds).holds and not make(fails).holds
  assert not make(np.nan).holds


@pytest.mark.parametrize("alteration", list(LIBRARY))
def test_altered_library_fails(alteration, monkeypatch):
  module, owner, name, instead, claim = LIBRARY[alteration]
  monkeypatch.setattr(owner, name, instead)
  jax.clear_caches()
  failed = module.check(**SMALL[module]).failed()
  jax.clear_caches()
  assert claim in failed
