"""Influence scores of a batch of the tiny model, forward and in reverse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import tiny_run

from jaxrl_llm.data import packing
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import influence_steps
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import prepare
from jaxrl_llm.training import rounds
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib

SETTINGS = dataclasses.replace(tiny_run.SETTINGS, groups_per_batch=0)


def write(root):
  """Writes 16 records; in rows of 32 tokens 3 or so go to a row."""
  rollouts = tiny_run.behave(
      tiny_run.make_rollouts(groups=4), tiny_run.params()
  )
  return tiny_run.write(root / "round", rollouts)


def setting(folder, overrides, curation, settings=SETTINGS, mesh=None):
  """A trainer at the policy that sampled, and its batch."""
  spec = algorithms.build(overrides)
  trainer = trainer_lib.build(
      tiny_run.POLICY,
      spec,
      settings,
      mesh=mesh,
      seed=0,
      reference_params=None,
      curation=curation,
      validation=tiny_run.make_rollouts(groups=3, seed=7),
  )
  work = rounds.open_round(
      [folder],
      spec,
      settings,
      tokenizer_fingerprint="tokenizer",
      seed=0,
      position=state_lib.Position(),
      lineage=tiny_run.LINEAGE,
      fingerprint=lambda: "weights",
  )
  state = state_lib.create(
      tiny_run.params(), optimizer.build(settings), tiny_run.LINEAGE
  )
  (batch,) = work.batches
  prepared = prepare.compute(trainer, state, work, batch)
  return trainer, state, work, batch, prepared


def moved(state):
  """Two updates after those that sampled: ratios leave 1, some clip."""
  noise = tiny_run.params(5)
  params = jax.tree.map(lambda a, b: a + 0.1 * b, state.params, noise)
  counters = dataclasses.replace(state.counters, updates=jnp.int32(2))
  return dataclasses.replace(state, params=params, counters=counters)


def reverse(trainer, state, work, batch, prepared, direction):
  """float64 [N]: each record alone in a row, its own backward pass."""
  terms = prepared.of(work.index.record_ids[batch.positions])
  terms = {k: v for k, v in terms.items() if k in trainer.terms - {"weights"}}
  rollouts = [work.records[int(n)] for n in batch.positions]
  whole = packing.assemble(
      rollouts,
      [[n] for n in range(len(rollouts))],
      tokens_per_row=32,
      prepared=terms,
  )
  whole = minibatch.complete(
      trainer,
      jax.tree.map(jnp.asarray, whole),
      state.steps,
      state.counters.updates,
  )
  sums = None
  if trainer.needs.statistics:
    sums = trainer.steps.add_sums(
        state.params, trainer.steps.start_sums(state.params, whole), whole
    )

  @jax.jit
  def product(params, row):
    loss = lambda tree: jnp.sum(
        influence_steps.contributions(
            tiny_run.POLICY, trainer.spec, tree, row, sums, plain=False
        )
    )
    slopes = jax.grad(loss)(params)
    return sum(
        jnp.vdot(a, b)
        for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(direction))
    )

  def row(n):
    return jax.tree.map(
        lambda x: x[n : n + 1] if x.ndim else x, whole
    )

  return np.array([product(state.params, row(n)) for n in range(len(rollouts))])
