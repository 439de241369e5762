"""Golden numbers: loss, token losses and gradient; aggregation."""

import golden_losses
import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import advantages as advantages_lib
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import objective

CASES = loss_batches.CASES


@pytest.mark.parametrize("x64", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("case", golden_losses.LOSSES)
def test_loss_and_gradient(case, x64):
  overrides, layout = golden_losses.LOSSES[case]
  wanted = CASES[case]
  # float64 compiled, float32 op by op.
  with jax.enable_x64(x64), jax.disable_jit(not x64):
    spec = algorithms.build(overrides)
    batch = loss_batches.golden_terms(**layout)
    (loss, losses), gradient = loss_batches.loss_and_gradient(spec, batch)
    tolerance = 1e-9 if x64 else 1e-5
    assert loss_batches.distance(loss, wanted["loss"]) < tolerance
    assert loss_batches.distance(losses, wanted["loss_tok"]) < tolerance
    assert loss_batches.distance(gradient, wanted["grad"]) < tolerance


def test_aggregations():
  wanted = CASES["aggregation"]
  rows = wanted["loss_mat"]
  for extra in ([], [[77.0] * 6]):
    losses = np.array(rows + extra)
    mask = np.zeros(losses.shape, bool)
    mask[0], mask[1, :4] = True, True
    with jax.enable_x64(True):
      where = masked.layout(jnp.asarray(mask), None, jnp.float64)
      for mode, kind in masked.AGGREGATIONS.items():
        if mode == "token-sum":
          value = 121.0
        else:
          value = wanted[mode]
        part = kind(8.0) if mode.endswith("norm") else kind()
        loss_batches.near(np.sum(losses * part.weights(where)), value)


def test_group_advantages_of_the_loss_golden():
  wanted = CASES["advantages"]
  rewards = np.array(wanted["rewards (3 groups x 4)"])
  groups = np.repeat(np.arange(3), 4)
  parts = {
      "grpo_verl  (r-mean)/(std_ddof1+1e-6)": {"name": "grpo"},
      "grpo_trl   (r-mean)/(std_ddof1+1e-4)": {
          "name": "grpo", "std_epsilon": 1e-4
      },
      "grpo_population_std (r-mean)/(std_ddof0+1e-6)": {
          "name": "grpo", "std_ddof": 0
      },
      "dr_grpo    r-mean": {"name": "dr_grpo"},
      "rloo       r-mean_of_others = (r-mean)*G/(G-1)": {"name": "rloo"},
  }
  with jax.enable_x64(True):
    for key, overrides in parts.items():
      found = objective.advantages(
          algorithms.build(overrides), rewards.reshape(-1), groups, np.ones(12)
      )
      loss_batches.near(found.reshape(3, 4), wanted[key])


def test_overlong():
  wanted = CASES["dapo_overlong"]
  forms = {
      "piecewise": "paper (piecewise, -1 beyond L_max)",
      "linear": "verl min(-(n-(Lmax-Lbuf))/Lbuf*factor, 0)",
  }
  with jax.enable_x64(True):
    for form, key in forms.items():
      part = advantages_lib.Shaping(
          overlong_limit=20480, overlong_buffer=4096, overlong_form=form
      )
      penalties = part.overlong(jnp.asarray(wanted["lengths"], float))
      loss_batches.near(penalties, wanted[key])
def test_espo_stops_on_its_statistic():
  wanted = CASES["espo_unclipped_surrogate"]
  with jax.enable_x64(True):
    spec = algorithms.build({"name": "espo"})
    output = loss_batches.full_output(spec, loss_batches.golden_terms())
    metrics = types.finish_metrics(output.metrics)
    deviation = wanted["ratio_deviation_mean"]
    assert metrics["ratio_deviation"] == pytest.approx(deviation, rel=1e-6)
    assert objective.should_stop(spec, metrics) == bool(wanted["stop"])
    calm = algorithms.build({"name": "espo", "stop_deviation": 0.45})
    assert not objective.should_stop(calm, metrics)
    assert not objective.should_stop(calm, {"ratio_deviation": 0.45})
