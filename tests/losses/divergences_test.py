"""Divergences by hand, at certainty and over the whole vocabulary."""

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import divergences
from jaxrl_llm.losses import tokens as tokens_lib


def _measure(overrides, batch):
  spec = algorithms.build({"name": "dppo_divergence", **overrides})
  tokens = tokens_lib.view(spec, batch)
  return np.asarray(jax.jit(
      lambda: spec.trust_region.divergences(tokens)
  )())


def test_certainty_is_finite():
  """Live probability 1: TV ½; KL ½ log ½ + ½ log(½ / 1e-8), the floor."""
  with jax.enable_x64(True):
    batch = types.Terms(
        mask=jnp.ones((1, 1), bool), advantages=jnp.ones((1, 1)),
        behavior_logprobs=jnp.log(jnp.full((1, 1), 0.5)),
        logprobs=jnp.zeros((1, 1)),
    )
    found = _measure({"divergence": "binary_tv"}, batch)
    assert float(found[0, 0]) == pytest.approx(0.5, abs=1e-7)
    found = _measure({"divergence": "binary_kl"}, batch)
    wanted = 0.5 * np.log(0.5) + 0.5 * np.log(0.5 / 1e-8)
    assert float(found[0, 0]) == pytest.approx(wanted, rel=1e-9)


def test_what_one_policy_never_draws():
  """KL(μ‖π): μ_k = 0 adds nothing; μ_k > 0 = π_k makes it infinite."""
  half, never = jnp.log(jnp.array([0.5, 0.5])), jnp.array([0.0, -jnp.inf])
  found = divergences.kullback_leibler(never, half)
  assert float(found) == pytest.approx(np.log(2.0))
  assert float(divergences.kullback_leibler(half, never)) == np.inf


@pytest.mark.parametrize("add", ["union", "replace"])
def test_the_whole_vocabulary_gives_the_exact_divergence(add):
  """No mass is left for the rest, whose log stays finite."""
  with jax.enable_x64(True):
    sequences = loss_batches.sequences(37, count=2, topk=8)
    spec = algorithms.build({
        "name": "dppo_divergence", "divergence": "topk_tv",
        "divergence_topk": 8,
    })
    batch = loss_batches.pack(spec, [[s] for s in sequences], 8)
    for kind in ("tv", "kl"):
      found = _measure({
          "divergence": f"topk_{kind}", "divergence_topk": 8, "topk_add": add
      }, batch)
      for row, sequence in enumerate(sequences):
        behavior, _, live = sequence["distributions"]
        wanted = {
            "tv": np.sum(np.abs(np.exp(behavior) - np.exp(live)), -1) / 2,
            "kl": np.sum(np.exp(behavior) * (behavior - live), -1),
        }[kind]
        wanted = np.where(sequence["mask"], wanted, 0.0)
        np.testing.assert_allclose(
            found[row, : len(wanted)], wanted, rtol=1e-6, atol=1e-12
        )
