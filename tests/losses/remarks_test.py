"""What describe says that the loss keeps of a cut token is what it computes."""

import itertools

import jax
import loss_batches
import numpy as np
import pytest

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.losses import surrogates

_BASE = {"name": "ppo", "anchor": "behavior"}
# Bounds that the drift of the batch passes, so that tokens are cut.
_TIGHT = {
    "clip": {"dual_clip": 1.2},
    "position_clip": {"ratio": "cumulative", "dual_log_clip": 0.1},
    "prefix_budget": {"delta": 0.01, "delta_b": 0.001},
    "divergence": {"delta": 0.01},
    "product_clip": {"alpha": 0.5},
    "adaptive_clip": {"epsilon_max": 0.21, "dual_clip": 1.2},
}


def _specs():
  """Each surrogate of a token under each region that it allows."""
  for surrogate, region in itertools.product(
      surrogates.SURROGATES, spec_lib.TRUST_REGIONS
  ):
    keys = {"surrogate": surrogate, "trust_region": region}
    try:
      yield algorithms.build(_BASE | keys | _TIGHT.get(region, {}))
    except ValueError:
      assert surrogate == "sigmoid" or region == "taper"


SPECS = {
    f"{spec.choice('surrogate')}, {spec.choice('trust_region')}": spec
    for spec in _specs()
}


def _said(spec):
  """What the line of the trust region says of the loss of a cut token."""
  lines = objective.describe(spec).splitlines()
  line, = [line for line in lines if line.startswith("trust region")]
  if "the loss keeps" in line:
    return "kept"
  if "the loss is 0" in line or "dropped where" in line:
    return "zero"
  assert "cut" not in line
  return "none is cut"


@pytest.mark.parametrize("name", SPECS)
def test_the_remark_is_what_runs(name):
  spec = SPECS[name]
  rows = [[s] for s in loss_batches.sequences(29, count=6)]
  batch = loss_batches.pack(spec, rows, 8, key=jax.random.key(3))
  tokens, logs, region, _ = loss_batches.look(spec, batch)
  cut = np.asarray(~region.active & batch.mask)
  losses = np.asarray(
      spec.surrogate(np.exp(logs), region, tokens.advantages, tokens.logprobs)
  )
  said = _said(spec)
  assert cut.any() == (said != "none is cut")
  if said == "zero":
    assert not losses[cut].any()
  elif said == "kept":
    assert losses[cut].all()


def test_what_may_go_together_is_compared():
  """Sigmoid with none alone, taper with weighted_log_prob alone: 1 + 8 + 2·7."""
  assert len(SPECS) == 23
