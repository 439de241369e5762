"""Pruning and prefix sampling leave the expected gradient as it is.

Every random choice on a small mini-batch is enumerated; the gradients, times
the probabilities of the choices, add up to that of the whole mini-batch. Real
model, trainer and objective (with KL, entropy and a correction), float64.
"""

import dataclasses
import itertools

import curation_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.curation import pruning
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import canvas
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import trainer as trainer_lib

SPEC = algorithms.build({
    "name": "ctpo",
    "correction": "tis",
    "kl_coefficient": 0.1,
    "entropy_coefficient": 0.01,
})
POLICY = dataclasses.replace(tiny_run.POLICY, compute_dtype="float64")
PRUNING = pruning.RandomPruning(prune_probability=0.3)
PREFIXES = pruning.PrefixSampling(full_probability=0.3)


@pytest.fixture(autouse=True)
def float64(monkeypatch):
  monkeypatch.setitem(canvas.Canvas._DTYPES, "weights", np.float64)
  with jax.enable_x64(True):
    yield


def make_trainer(curation):
  return trainer_lib.build(
      POLICY,
      SPEC,
      tiny_run.SETTINGS,
      mesh=None,
      seed=0,
      reference_params=jax.tree.map(
          lambda x: jnp.asarray(x, jnp.float64), tiny_run.params(3)
      ),
      curation=curation,
  )


def make_batch():
  """Two groups of two responses with 3, 2, 1 and 4 trained tokens."""
  rollouts = []
  sizes, tools = (4, 2, 1, 4), (1, None, None, None)
  for rollout, stop, tool in zip(tiny_run.make_rollouts(2, 2), sizes, tools):
    mask = np.ones(stop, bool)
    if tool is not None:
      mask[tool] = False
    rollouts.append(
        dataclasses.replace(
            rollout,
            response_tokens=np.resize(rollout.response_tokens, stop),
            response_mask=mask,
            behavior_logprobs=np.zeros(stop, np.float32),
            log_kept_mass=np.zeros(stop, np.float32),
            policy_versions=np.zeros(stop, np.int32),
            topk_ids=np.zeros((stop, 0), np.int32),
            topk_logprobs=np.zeros((stop, 0), np.float32),
        )
    )
  draw = np.random.default_rng(1)
  near = lambda scale: [
      (-3.4 + scale * draw.normal(size=r.response_tokens.size)).astype(
          np.float32
      )
      for r in rollouts
  ]
  rollouts = [
      dataclasses.replace(r, behavior_logprobs=b)
      for r, b in zip(rollouts, near(0.3))
  ]
  terms = {
      "advantages": [np.float32(a) for a in (1.5, -0.2, 0.1, -1.2)],
      "proximal_logprobs": near(0.3),
      "reference_logprobs": near(0.3),
  }
  return rollouts, terms


def gradient(trainer, rollouts, terms):
  """Returns the gradient as one vector, and the tokens in the rows."""
  params = jax.tree.map(
      lambda x: jnp.asarray(x, jnp.float64), tiny_run.params(1)
  )
  built = minibatch.build(trainer, rollouts, terms)
  if not built.pieces:
    return 0.0, 0
  totals = minibatch.accumulate(trainer, params, built, 0)
  leaves = jax.tree.leaves(totals.grads)
  return np.concatenate([np.ravel(leaf) for leaf in leaves]), built.tokens


def check(curation, choices):
  """Compares; `choices` are (probability, weights) per record."""
  rollouts, terms = make_batch()
  want, tokens = gradient(make_trainer(None), rollouts, terms)
  assert want.dtype == np.float64
  trainer = make_trainer(curation)
  total, mean, fewest = 0.0, 0.0, tokens
  for combination in itertools.product(*choices(rollouts)):
    chance = np.prod([chance for chance, _ in combination])
    weights = [row for _, row in combination]
    found, used = gradient(trainer, rollouts, terms | {"weights": weights})
    total, mean = total + chance, mean + chance * found
    fewest = min(fewest, used)
  assert total == pytest.approx(1, abs=1e-12)
  assert fewest < tokens
  assert np.linalg.norm(mean - want) <= 1e-9 * np.linalg.norm(want)
  return mean, want


def prune_choices(rollouts):
  batch = curation_cases.make([1.5, -0.2, 0.1, -1.2])
  chances = PRUNING.keep_probabilities(batch)
  np.testing.assert_allclose(chances, [1, 0.7, 0.7, 1])
  return [
      [
          (share, np.full(rollout.response_tokens.shape, weight))
          for share, weight in ((chance, 1 / chance), (1 - chance, 0.0))
          if share
      ]
      for rollout, chance in zip(rollouts, chances)
  ]


def prefix_choices(rollouts):
  found = []
  for rollout in rollouts:
    mask = indices.trained_mask(rollout)
    options = []
    for cutoff, chance in zip(*PREFIXES.cutoffs(int(mask.sum()))):
      row = np.zeros(mask.shape)
      row[mask] = PREFIXES.token_weights(int(cutoff), int(mask.sum()))
      options.append((chance, row))
    found.append(options)
  assert [len(options) for options in found] == [3, 2, 1, 4]
  return found


def test_random_pruning():
  check(PRUNING, prune_choices)


def test_prefix_sampling():
  check(PREFIXES, prefix_choices)
