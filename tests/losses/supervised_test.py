"""Sft: the NLL of the responses that earned a reward, and of no other."""

import dataclasses

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective

SFT = {"name": "sft"}


def _sequences(chosen):
  """Six responses; those of `chosen` have advantage 1, the others 0."""
  found = loss_batches.sequences(31)
  for number, sequence in enumerate(found):
    ones = np.ones(len(sequence["mask"]))
    sequence["advantages"] = float(number in chosen) * ones
    sequence["weights"] = ones
  return found


def _pack(spec, sequences):
  return loss_batches.pack(spec, [sequences[:3], sequences[3:]], 24)


def test_the_loss_is_the_token_mean_over_the_imitated():
  spec = algorithms.build(SFT)
  with jax.enable_x64(True):
    sequences = _sequences({0, 2, 5})
    batch = _pack(spec, sequences)
    (loss, _), gradient = loss_batches.loss_and_gradient(spec, batch)
  kept = np.concatenate(
      [sequences[n]["logprobs"][sequences[n]["mask"]] for n in (0, 2, 5)]
  )
  np.testing.assert_allclose(loss, -kept.mean(), rtol=1e-12)
  mask = np.asarray(batch.mask) & np.isin(batch.sequence_ids, (0, 2, 5))
  wanted = np.where(mask, -1 / kept.size, 0.0)
  np.testing.assert_allclose(gradient, wanted, rtol=1e-12)


@pytest.mark.parametrize("extra", [
    {}, {"kl_coefficient": 0.1, "entropy_coefficient": 0.1},
], ids=str)
def test_what_the_others_hold_reaches_no_term(extra):
  """Not loss, denominator, regularizer nor metric; NaN included."""
  spec = algorithms.build(SFT | extra)
  with jax.enable_x64(True):
    sequences = _sequences({1, 4})
    alone = [sequences[1], sequences[4]]
    wanted_batch = loss_batches.pack(spec, [alone], 24)
    wanted = loss_batches.full_output(spec, wanted_batch)
    batch = _pack(spec, sequences)
    others = np.isin(batch.sequence_ids, (0, 2, 3, 5))
    batch = dataclasses.replace(batch, **{
        name: jnp.where(others, jnp.nan, getattr(batch, name))
        for name in ("logprobs", "behavior_logprobs", "reference_logprobs",
                     "proximal_logprobs", "entropy", "rewards", "weights")
    })
    found = loss_batches.full_output(spec, batch)
    _, gradient = loss_batches.loss_and_gradient(spec, batch)
  assert not np.any(np.asarray(gradient)[others])
  assert np.any(gradient)
  for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
    np.testing.assert_allclose(left, right, rtol=1e-6)


def test_nobody_to_imitate_gives_zero():
  spec = algorithms.build(SFT)
  batch = _pack(spec, _sequences(()))
  (loss, _), gradient = loss_batches.loss_and_gradient(spec, batch)
  assert float(loss) == 0 and not np.any(gradient)


@pytest.mark.parametrize("overrides,wanted", [
    ({}, [0, 0, 1, 1, 0]),
    ({"imitate_above": 0.5}, [0, 0, 0, 1, 0]),
    ({"imitate_above": -2.0}, [1, 1, 1, 1, 0]),
    # 0.5 for 4 tokens beyond 6 of 10: 0.5 − 1 is not above 0.
    ({"overlong_limit": 10, "overlong_buffer": 4}, [0, 0, 0, 1, 0]),
], ids=str)
def test_who_is_imitated(overrides, wanted):
  """Rewards −1, 0, 0.5, 1 and none; a reward at the threshold is too low."""
  spec = algorithms.build(SFT | overrides)
  found = objective.advantages(
      spec, np.array([-1.0, 0.0, 0.5, 1.0, np.nan]), np.zeros(5, int),
      np.array([1, 1, 10, 1, 1]),
  )
  np.testing.assert_array_equal(found, wanted)


def test_what_sft_needs():
  """Nothing but its records: any policy may have drawn them, one by one."""
  needs = objective.requirements(algorithms.build(SFT))
  assert needs.correction_named
  assert not (needs.proximal or needs.reference or needs.group_baseline)
  text = objective.describe(algorithms.build(SFT | {"imitate_above": 0.25}))
  assert "A = 1 where R > 0.25" in text and "in the metrics alone" in text
