"""A mini-batch's gradient does not depend on how it is cut and laid out.

The real model and objective go through the trainer's own functions: as one
micro-batch (1×B) and as many (B×1), packed and not, padded left and right,
shuffled, with garbage in every place that a mask or padding covers.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import tiny_run

from jaxrl_llm.data import packing
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import step
from jaxrl_llm.training import trainer as trainer_lib

SPEC = algorithms.build({
    "name": "ctpo",
    "correction": "tis",
    "kl_coefficient": 0.1,
    "entropy_coefficient": 0.01,
})
N = 8


def make_trainer(policy, rows, tokens):
  return trainer_lib.build(
      policy,
      SPEC,
      dataclasses.replace(
          tiny_run.SETTINGS, rows_per_microbatch=rows, tokens_per_row=tokens
      ),
      mesh=None,
      seed=0,
      reference_params=tiny_run.params(3),
  )


def make_batch():
  """Returns N records and prepared terms, all policies a little apart."""
  rollouts = tiny_run.behave(
      tiny_run.make_rollouts(2, N // 2), tiny_run.params()
  )
  draw = np.random.default_rng(1)
  behavior = [rollout.behavior_logprobs for rollout in rollouts]
  near = lambda scale: [
      (old + scale * draw.normal(size=old.shape)).astype(np.float32)
      for old in behavior
  ]
  terms = {
      "advantages": list(draw.normal(size=N).astype(np.float32)),
      "proximal_logprobs": near(0.05),
      "reference_logprobs": near(0.3),
  }
  return rollouts, terms


def assemble(trainer, rollouts, terms, rows):
  count = -(-len(rows) // trainer.shape.rows)
  batch = packing.assemble(
      rollouts,
      rows,
      tokens_per_row=trainer.shape.tokens,
      rows_per_microbatch=trainer.shape.rows,
      prepared=terms,
  )
  return batch, count


def gradient(trainer, params, batch, count) -> step.Totals:
  pieces = minibatch.split(trainer, batch, count)
  return minibatch.accumulate(
      trainer, params, minibatch.Minibatch(pieces, 0, {}), 0
  )


def to_the_right(batch):
  """Moves each row's sequences to its end: padding on the left."""
  filled = (batch.segment_ids > 0).sum(axis=1)
  index = (
      np.arange(batch.tokens.shape[1]) + filled[:, None]
  ) % batch.tokens.shape[1]
  return jax.tree.map(lambda x: np.take_along_axis(x, index, 1), batch)


def spoil(batch):
  """Fills what masks and padding cover with garbage and NaN."""
  draw = np.random.default_rng(2)
  padding = batch.segment_ids == 0

  def garbage(values, where):
    junk = np.where(draw.random(values.shape) < 0.5, np.nan, 1e30)
    return np.where(where, junk.astype(values.dtype), values)

  spoiled = {
      name: garbage(getattr(batch.terms, name), ~batch.terms.mask)
      for name in (
          "advantages",
          "behavior_logprobs",
          "proximal_logprobs",
          "reference_logprobs",
          "weights",
          "rewards",
      )
  }
  tokens = draw.integers(0, tiny_run.VOCABULARY, batch.tokens.shape)
  return dataclasses.replace(
      batch,
      tokens=np.where(padding, tokens, batch.tokens).astype(np.int32),
      positions=np.where(padding, 7, batch.positions),
      terms=dataclasses.replace(batch.terms, **spoiled),
  )


def layouts(policy):
  """Yields (name, trainer, batch, micro-batches) of the same mini-batch."""
  rollouts, terms = make_batch()
  alone = [[n] for n in range(N)]
  one = make_trainer(policy, N, 32)
  yield "1×B", one, *assemble(one, rollouts, terms, alone)
  many = make_trainer(policy, 1, 32)
  batch, count = assemble(many, rollouts, terms, alone)
  yield "B×1", many, batch, count
  yield "padded left", many, to_the_right(batch), count
  yield "garbage", many, spoil(batch), count
  packed = packing.pack_rollouts(rollouts, 32)
  assert len(packed) < N / 2 + 1
  batch, count = assemble(many, rollouts, terms, packed)
  assert np.any(batch.parent_ids != batch.segment_ids)
  yield "packed", many, batch, count
  order = np.random.default_rng(3).permutation(N)
  shuffled = {name: [x[n] for n in order] for name, x in terms.items()}
  moved = [rollouts[n] for n in order]
  rows = packing.pack_rollouts(moved, 32)[::-1]
  yield "shuffled", many, *assemble(many, moved, shuffled, rows)
  batch, count = assemble(one, rollouts, terms, packed)
  yield "packed, one micro-batch, garbage", one, spoil(batch), count


def distances(left, right) -> dict[str, float]:
  """‖Δ‖ / ‖g‖ of each parameter array."""
  found = jax.tree_util.tree_map(
      lambda a, b: float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)),
      left,
      right,
  )
  leaves = jax.tree_util.tree_leaves_with_path(found)
  return {jax.tree_util.keystr(path): value for path, value in leaves}


def check(dtype, tolerance):
  policy = dataclasses.replace(tiny_run.POLICY, compute_dtype=dtype)
  params = jax.tree.map(
      lambda x: jnp.asarray(x, dtype), tiny_run.params(1)
  )
  first = None
  for name, trainer, batch, count in layouts(policy):
    totals = gradient(trainer, params, batch, count)
    assert totals.loss.dtype == dtype
    first = first or totals
    worst = distances(totals.grads, first.grads)
    assert max(worst.values()) <= tolerance, (name, worst)
    np.testing.assert_allclose(totals.loss, first.loss, rtol=tolerance * 10)
    assert float(totals.metrics["tokens"].total) == float(
        first.metrics["tokens"].total
    )


def test_float64():
  with jax.enable_x64(True):
    check("float64", 1e-10)


def test_float32():
  check("float32", 1e-5)


def test_an_empty_microbatch_adds_nothing():
  """All padding gives loss 0 and gradient 0, not NaN."""
  rollouts, terms = make_batch()
  trainer = make_trainer(tiny_run.POLICY, 1, 32)
  params = tiny_run.params(1)
  rows = [[n] for n in range(N)]
  want = gradient(trainer, params, *assemble(trainer, rollouts, terms, rows))
  rows += [[] for _ in range(N)]
  got = gradient(trainer, params, *assemble(trainer, rollouts, terms, rows))
  for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    np.testing.assert_array_equal(left, right)
