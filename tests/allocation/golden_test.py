"""Golden numbers of every allocator."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from jaxrl_llm.allocation import cero
from jaxrl_llm.allocation import dapo
from jaxrl_llm.allocation import gvm
from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import knapsack
from jaxrl_llm.allocation import spo
from jaxrl_llm.allocation import utility

FOLDER = pathlib.Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "data.json").read_text())["golden"]
RATIOS = json.loads((FOLDER / "is.json").read_text())["cases"]
CERO = GOLDEN["cero"]["cases"]
close = lambda found, wanted: np.testing.assert_allclose(
    found, wanted, rtol=1e-9, atol=1e-12
)


def cero_start(config: dict) -> tuple[cero.Cero, cero.CeroState]:
  """The allocator and first state of a golden case."""
  allocator = cero.Cero(
      unit=config["g"],
      unit_limit=config["Nmax"],
      capacity=config["C"],
      curvature=config["lam"],
      forgetting=config["rho"],
      prior_correct=config["a0"],
      prior_wrong=config["b0"],
      budget_price=config["nu1"],
      price_step=config["gam_t"],
      budget_step=config["gam_n"],
  )
  budget = interface.Budget(prompts=1, samples=4, rounds=config["K"])
  start = allocator.start(config["M"], budget, seed=0)
  # The golden totals are no multiple of the rounds.
  return allocator, dataclasses.replace(
      start, total=config["Bu"], left=config["Bu"]
  )


def outcomes(samples, correct) -> interface.Outcomes:
  samples, correct = np.array(samples), np.array(correct)
  return interface.Outcomes(samples, samples, correct, np.zeros(len(samples)))


@pytest.mark.parametrize("case", CERO)
def test_cero_step_by_step(case):
  wanted, size = CERO[case], CERO[case]["config"]["M"]
  allocator, state = cero_start(wanted["config"])
  exposure = np.zeros(size)
  for step in wanted["rounds"]:
    close(state.prices, step["theta"])
    close(state.budget_price, step["nu"])
    close(
        utility.informativeness(state.correct, state.wrong), step["q_pre"]
    )
    counts = allocator.propose(state, None, np.arange(size))
    units = counts // allocator.unit
    np.testing.assert_array_equal(units, step["executed"])
    exposure += units
    # Through the JSON of a checkpoint, which must lose nothing.
    saved = json.loads(json.dumps(interface.to_json(state)))
    state = interface.from_json(cero.CeroState, saved)
    state = allocator.observe(state, outcomes(counts, step["successes"]))
    close(state.correct, step["a"])
    close(state.wrong, step["b"])
    close(
        utility.informativeness(state.correct, state.wrong), step["q_post"]
    )
    close(state.prices, step["theta_next"])
    close(state.budget_price, step["nu_next"])
    assert state.left == step["budget_left"]
  np.testing.assert_array_equal(exposure, wanted["exposure"])


@pytest.mark.parametrize("case", CERO)
def test_cero_against_the_best_in_hindsight(case):
  config, oracle = CERO[case]["config"], CERO[case]["oracle"]
  share = config["Bu"] / config["M"]
  rates = 4 * config["lam"] * np.array(oracle["q"]) / share
  best = utility.best_in_hindsight(
      rates, config["Bu"], config["K"] * config["Nmax"]
  )
  np.testing.assert_array_equal(best, oracle["z"])
  close(utility.utility(rates, best).sum(), oracle["value"])
  exposure = np.array(CERO[case]["exposure"])
  close(utility.utility(rates, exposure).sum(), oracle["achieved"])


@pytest.mark.parametrize("unit", GOLDEN["cero"]["units"]["zstar"])
def test_cero_conjugate(unit):
  given = unit["theta"], unit["c"], unit["Z"]
  close(utility.best_exposure(*given), unit["z"])
  close(utility.conjugate(*given), unit["conj"])


@pytest.mark.parametrize("unit", GOLDEN["cero"]["units"]["qhat"])
def test_cero_informativeness(unit):
  close(utility.informativeness(unit["a"], unit["b"]), unit["q"])


def test_knapsack():
  wanted = GOLDEN["knapsack"]
  rates = np.array(wanted["p"])
  allocator = knapsack.Knapsack(max_samples=wanted["max_n"])
  budget = interface.Budget(3, wanted["total"] // 3, 1)
  counts = allocator.share(rates, budget)
  np.testing.assert_array_equal(counts, wanted["allocation"])
  close(np.sum(knapsack.value(counts, rates)), wanted["value"])
  close(allocator.costs(rates), wanted["cost_probability_alpha0p9"])
  by_expectation = dataclasses.replace(allocator, cost="expectation")
  close(by_expectation.costs(rates), wanted["cost_expectation"])


def test_gvm():
  wanted = GOLDEN["gvm"]
  allocator = gvm.Gvm(
      unit=1, rate_penalty=wanted["alpha"], rate_power=wanted["beta"]
  )
  rates = np.array(wanted["accept_rate"])
  gradients = np.array(wanted["grad_norm"])
  ratio = allocator.ratio(rates, gradients)
  close(ratio, wanted["ratio"])
  close(ratio * wanted["budget"], wanted["real_valued"])
  # By hand: 10.07, 14.32, 0 and 7.61 round to 10 + 14 + 0 + 8 = 32.
  state = gvm.GvmState(1, rates, gradients, np.zeros(4, int))
  budget = interface.Budget(4, 8, 2)
  counts = allocator.propose(state, budget, np.arange(4))
  np.testing.assert_array_equal(counts, [10, 14, 0, 8])


def test_spo_prompt_sampling():
  wanted = GOLDEN["spo_prompt_sampling"]
  weights = spo.Spo().weights(np.array(wanted["p_hat"]))
  close(weights, wanted["weights"])
  close(weights / weights.sum(), wanted["probs"])
  drift = wanted["forgetting"]["D"]
  assert spo.Spo(half_life=wanted["forgetting"]["D_half"]).forgetting(
      drift
  ) == pytest.approx(wanted["forgetting"]["rho_clipped"])
  free = spo.Spo(forgetting_min=0.0, forgetting_max=1.0)
  assert free.forgetting(drift) == pytest.approx(wanted["forgetting"]["rho"])


def test_dynamic_sampling_keep():
  case = RATIOS["advantages"]
  rewards = np.array(case["rewards (3 groups x 4)"])
  found = dapo.keeps(np.full(3, 4), rewards.sum(1).astype(int))
  np.testing.assert_array_equal(found, case["dynamic_sampling_keep  std>0"])
  # A single response has no deviation and is kept.
  assert dapo.keeps(np.array([1]), np.array([0])).all()
