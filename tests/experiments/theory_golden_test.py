"""Golden numbers of the statements, by the programs that check them."""

import json
import pathlib

from experiments.theory import acpo_second_moment
from experiments.theory import prefix_budget
from experiments.theory import saturation
from experiments.theory import sis_bias
from experiments.theory import tabular
import jax
import numpy as np
import pytest

from jaxrl_llm.losses import algorithms

ROOT = pathlib.Path(__file__).parents[2]
CASES = json.loads((ROOT / "tests/golden/is.json").read_text())["cases"]


def test_golden_identity_of_cppo():
  wanted = CASES["cppo_identity_check"]
  inputs = CASES["enumeration_unbiasedness"]
  table = lambda logits: np.stack(
      [-np.logaddexp(0, logits), -np.logaddexp(0, -np.array(logits))], axis=1
  )
  behavior, live = table(inputs["behaviour"]), table(inputs["theta"])
  outcomes = np.array(list(inputs["reward"].values()))
  with jax.enable_x64(True):
    everything = tabular.responses(2, 2)
    pair = (behavior, live)
    chances = tabular.probabilities(behavior, everything)
    delta = chances @ (
        outcomes * prefix_budget.second_order(*pair, everything)
    )
    spec = algorithms.build(
        {"name": "cppo_prefix", "divergence": "binary_tv"}
    )
    batch = tabular.terms(behavior, live, 1.0, everything)
    distances = np.asarray(saturation.walk(spec, batch)[0].divergences)
    first, last = distances[0, 0], np.max(distances[:, 1])
    found = {
        "J(pi)-J(mu)": prefix_budget.improvement(*pair, outcomes, everything),
        "L_prime": prefix_budget.first_order(*pair, outcomes, everything),
        "Delta": delta,
        "bound 4*xi*sum_t u_t*sum_{j>t} l_j": (
            4 * prefix_budget.XI * first * last
        ),
        "xi": prefix_budget.XI,
        "u_1": first,
        "l_2": last,
    }
  assert found == pytest.approx(wanted, abs=1e-12)


def test_golden_norm_scaling_of_acpo():
  wanted = CASES["acpo_pmd_advantage_clip"]
  advantages = np.array(wanted["A(s,.)"])
  found = acpo_second_moment.norm_scaled(advantages, wanted["alpha"])
  np.testing.assert_allclose(
      found, wanted["A_clipped (inf-norm) = A*alpha/max(alpha,|A|_inf)"]
  )
  # Eq 5 cuts 4 and −6; scaled, all are kept.
  assert acpo_second_moment.on_policy_share(advantages) == 0.5
  assert acpo_second_moment.on_policy_share(found) == 1.0


def test_golden_expectations_of_sis():
  """With a function that has the golden's E_p f and E_p[r f]."""
  wanted = CASES["sis_expectation_check"]
  q, p = (np.array(CASES["sis"][k][0]) for k in ("p_old", "p_new"))
  f = np.array([1.5, 0.5, -1.0, 0.0, -3.0, -2.0])
  draws = 4096
  with jax.enable_x64(True):
    found = sis_bias.point(p, q, f, draws, jax.random.key(0))
  near = lambda x, tolerance=1e-3: pytest.approx(x, abs=tolerance)
  rate = wanted["accept_rate = 1/M"][0]
  # Token 3 has a ratio of exactly 1, which always passes.
  assert found.accepted[0] == near(rate + q[3] * (1 - rate))
  assert found.weight[0] == near(wanted["E_q[w_sis]"])
  assert found.weight[1] == near(wanted["1 - chi2(p||q)/M"], 1e-12)
  assert found.plain == near((wanted["E_p[f]"], wanted["E_q[w_is f]"]), 1e-12)
  assert found.grid == near((wanted["E_q[w_sis f]"],) * 2)
  assert found.grid[1] - found.plain[1] == near(
      wanted["predicted bias (E_p[f]-E_p[r f])/M"], 1e-12
  )
  assert found.rejection[0] == near(
      wanted["M*E_q[accept f] (true rejection sampling)"]
  )
