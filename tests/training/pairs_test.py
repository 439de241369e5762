"""Pairs through the trainer: the gradient is that of the definition.

The real model computes the log-probs; records of a pair lie in one row, in
two, or in two micro-batches.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run

from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import packing
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import pairs
from jaxrl_llm.training import trainer as trainer_lib

N = 12
BETA = 0.3
SPEC = algorithms.build({"name": "dpo", "dpo_beta": BETA})
POLICY = dataclasses.replace(tiny_run.POLICY, compute_dtype="float64")


def _records():
  """Three groups of four, and their prepared terms."""
  rollouts = tiny_run.make_rollouts(3, 4)
  draw = np.random.default_rng(4)
  rewards = np.tile([1.0, 0.0, 0.5, 0.0], 3).astype(np.float32)
  reference = [
      -draw.random(r.response_tokens.size, np.float32) for r in rollouts
  ]
  return rollouts, {
      "advantages": list(rewards), "reference_logprobs": reference
  }


def _trainer(rows, tokens):
  settings = dataclasses.replace(
      tiny_run.SETTINGS, rows_per_microbatch=rows, tokens_per_row=tokens
  )
  return trainer_lib.build(
      POLICY,
      SPEC,
      settings,
      mesh=None,
      seed=0,
      reference_params=tiny_run.params(3),
  )


def _definition(params, rollouts, terms):
  """Mean of −log σ(β (D_w − D_l)) over the pairs, one record a row."""
  batch = packing.assemble(
      rollouts,
      [[n] for n in range(N)],
      tokens_per_row=16,
      prepared=terms,
  )
  scored = POLICY.token_logprobs(
      params, batch.tokens, batch.segment_ids, batch.parent_ids,
      batch.positions, batch.temperatures, batch.terms.mask,
  )
  gaps = scored.logprobs - batch.terms.reference_logprobs
  gaps = jnp.sum(gaps, axis=1, where=batch.terms.mask)
  found = [
      -jax.nn.log_sigmoid(BETA * (gaps[w] - gaps[l]))
      for w in range(N)
      for l in range(N)
      if w // 4 == l // 4 and terms["advantages"][w] > terms["advantages"][l]
  ]
  assert len(found) == 15
  return sum(found) / len(found)


@pytest.mark.parametrize("rows,tokens,turned", [
    (1, 32, False), (2, 32, True), (16, 64, False), (3, 20, True),
])
def test_the_gradient_is_that_of_the_definition(rows, tokens, turned):
  rollouts, terms = _records()
  with jax.enable_x64(True):
    params = jax.tree.map(
        lambda x: jnp.asarray(x, "float64"), tiny_run.params(1)
    )
    wanted = jax.jit(jax.value_and_grad(
        lambda tree: _definition(tree, rollouts, terms)
    ))(params)
    if turned:
      rollouts = rollouts[::-1]
      terms = {name: values[::-1] for name, values in terms.items()}
    trainer = _trainer(rows, tokens)
    built = minibatch.build(trainer, rollouts, terms)
    totals = minibatch.accumulate(trainer, params, built, 0)
  assert len(built.pieces) > 1 or rows == 16
  np.testing.assert_allclose(totals.loss, wanted[0], rtol=1e-9)
  for found, slope in zip(
      jax.tree.leaves(totals.grads), jax.tree.leaves(wanted[1])
  ):
    gap = np.linalg.norm(found - slope) / np.linalg.norm(slope)
    assert gap < 1e-9
  metrics = types.finish_metrics(jax.device_get(totals.metrics))
  assert metrics["pairs"] == 15


def test_what_is_read_of_each_sequence():
  """Ten records of groups of 4, 4 and 2, filled up to 16."""
  rollouts, terms = _records()
  scores = {"advantages": terms["advantages"][:10]}
  found = pairs.by_sequence(indices.Index.of(rollouts[:10]), scores)
  groups = found["sequence_groups"]
  assert groups.shape == found["sequence_scores"].shape == (16,)
  assert [len(set(groups[n : n + 4])) for n in (0, 4)] == [1, 1]
  assert len(set(groups[:10])) == 3 and set(groups[10:]) == {-1}
  np.testing.assert_array_equal(
      found["sequence_scores"][:10], scores["advantages"]
  )


def test_a_reference_is_asked_for():
  with pytest.raises(ValueError, match="dpo compares with a reference"):
    trainer_lib.build(
        POLICY,
        SPEC,
        tiny_run.SETTINGS,
        mesh=None,
        seed=0,
        reference_params=None,
    )


def test_a_minibatch_without_a_pair_is_no_update():
  """Momentum must not move the parameters where nothing was compared."""
  rollouts, terms = _records()
  even = terms | {"advantages": [np.float32(n // 4) for n in range(N)]}
  trainer = _trainer(2, 32)
  assert not minibatch.build(trainer, rollouts, even).pieces
  assert minibatch.build(trainer, rollouts, terms).pieces
