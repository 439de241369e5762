"""What is a constant of the loss carries no gradient, whoever reads it."""

import dataclasses

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import ratios
from jaxrl_llm.losses import tokens as tokens_lib

LIVE = ("logprobs", "topk_logprobs", "entropy")
# One of each region, and the parts that read live log-probs besides it.
SPECS = {
    "none": {"name": "espo"},
    "clip": {"name": "ppo", "dual_clip": 3.0, "correction": "tis"},
    "position_clip": {"name": "ctpo", "dual_log_clip": 0.05},
    "prefix_budget": {"name": "cppo_prefix"},
    "soft gate": {"name": "cppo_prefix", "gate": "soft"},
    "top-K": {"name": "cppo_prefix", "divergence": "topk_kl",
              "divergence_topk": 4},
    "divergence": {"name": "dppo_divergence"},
    "product_clip": {"name": "acpo_advantage"},
    "adaptive_clip": {"name": "acpo_adaptive"},
    "adaptive_clip, microbatch": {
        "name": "acpo_adaptive", "statistics_scope": "microbatch"
    },
    "taper": {"name": "topr"},
    "sigmoid": {"name": "sapo"},
    "sis": {"name": "sis", "selection_topk": 4},
    "pairs": {"name": "dpo"},
    "regularized": {
        "name": "ppo", "kl_coefficient": 0.1, "entropy_coefficient": 0.1
    },
}


def _batch(spec):
  rows = [[s] for s in loss_batches.sequences(29, count=4)]
  return loss_batches.pack(spec, rows, 8, key=jax.random.key(3))


def _read_by_gradients(function, batch):
  """Live fields that the gradient of what a function returns depends on.

  Read off the traced program: a detached value has the gradient 0 whatever
  the log-probs are, so its program reads none of them.
  """
  live = {
      name: getattr(batch, name)
      for name in LIVE if getattr(batch, name) is not None
  }

  def total(live):
    leaves = jax.tree.leaves(function(dataclasses.replace(batch, **live)))
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum(jnp.sum(x) for x in floats)

  program = jax.make_jaxpr(jax.grad(total))(live).jaxpr
  needed = {id(v) for v in program.outvars}
  for step in reversed(program.eqns):
    if any(id(v) in needed for v in step.outvars):
      needed |= {id(v) for v in step.invars}
  return {
      name for name, v in zip(sorted(live), program.invars) if id(v) in needed
  }


@pytest.mark.parametrize("name", SPECS)
def test_regions_statistics_and_metrics_are_detached(name):
  spec = algorithms.build(SPECS[name])

  def decided(batch):
    tokens = tokens_lib.view(spec, batch)
    logs, _ = tokens_lib.ratio_logs(spec, tokens)
    sums = None
    if objective.requirements(spec).statistics:
      sums = objective.statistics(spec, batch)
    region = spec.trust_region(logs, tokens, sums)
    weights = objective.denominators(spec, batch)
    metrics = objective.apply(spec, batch, weights, sums).metrics
    found = [sums, region.values, region.gates, region.budget_shares, metrics]
    if hasattr(spec.trust_region, "divergences"):
      found.append(spec.trust_region.divergences(tokens))
    return found

  batch = _batch(spec)
  assert not _read_by_gradients(decided, batch)
  # The same reading finds what is not detached.
  logs = lambda batch: tokens_lib.view(spec, batch).log_ratios()
  assert _read_by_gradients(logs, batch) == {"logprobs"}


def test_anchor_and_advantages_are_constants():
  """Both may be computed from the live log-probs: r = 1, gradient −A/n."""
  spec = algorithms.build({"name": "ppo"})
  batch = loss_batches.golden_terms()
  weights = objective.denominators(spec, batch)

  def loss(logprobs):
    live = dataclasses.replace(
        batch, logprobs=logprobs, proximal_logprobs=logprobs,
        advantages=batch.advantages + logprobs - batch.logprobs,
    )
    return objective.apply(spec, live, weights).loss

  gradient = jax.jit(jax.grad(loss))(batch.logprobs)
  wanted = np.where(batch.mask, -batch.advantages / np.sum(batch.mask), 0.0)
  np.testing.assert_allclose(gradient, wanted, rtol=1e-6)


def test_loglinear_proximal_by_age():
  """a = 0, 0, ½ and ⅔ at lags 0 to 3; no gradient through log π."""
  versions = jnp.array([[7, 6, 5, 4]])
  live, behavior = jnp.full((1, 4), -1.0), jnp.full((1, 4), -4.0)
  proximal = lambda live: tokens_lib.loglinear_proximal(
      live, behavior, jnp.asarray(7), versions
  )
  np.testing.assert_allclose(proximal(live), [[-4, -4, -2.5, -2]], rtol=1e-6)
  gradient = jax.grad(lambda live: jnp.sum(proximal(live)))(live)
  np.testing.assert_array_equal(gradient, np.zeros((1, 4)))


@pytest.mark.parametrize("role", ["proximal", "behavior"])
def test_denominators_read_no_live_field(role):
  """And do with one recorded policy, whichever it is."""
  spec = algorithms.build({"name": "ppo", "anchor": role})
  batch = loss_batches.golden_terms(role=role)
  other = {"proximal": "behavior", "behavior": "proximal"}[role]
  batch = dataclasses.replace(
      batch, logprobs=None, **{f"{other}_logprobs": None}
  )
  weights = objective.denominators(spec, batch)["policy"]
  np.testing.assert_allclose(weights, np.asarray(batch.mask) / 10, rtol=1e-6)


@pytest.mark.parametrize("name", ["top-K", "divergence", "sis"])
def test_masked_tokens_have_no_divergence_and_no_exemption(name):
  spec = algorithms.build(SPECS[name])
  rows = [[s] for s in loss_batches.sequences(29, count=4)]
  batch = loss_batches.pack(
      spec, rows, 8, garbage=np.nan, key=jax.random.key(3)
  )
  tokens = tokens_lib.view(spec, batch)
  outside = ~np.asarray(batch.mask)
  if name == "sis":
    assert isinstance(spec.selection, ratios.SelectiveImportanceSampling)
    found = jax.jit(lambda: spec.selection.exempt(tokens))()
  else:
    found = jax.jit(lambda: spec.trust_region.divergences(tokens))()
    assert np.all(np.asarray(found)[~outside] > 0)
  assert not np.any(np.asarray(found)[outside])
