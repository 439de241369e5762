"""What the programs of a job read, as shapes with places on a mesh."""

from collections.abc import Iterable
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import packing
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import bandit
from jaxrl_llm.training import critic_learning
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import step
from jaxrl_llm.training import trainer as trainer_lib

PyTree = types.PyTree
# Records of a mini-batch, where an objective of pairs reads all of them.
_SEQUENCES = 64


def placed(tree: PyTree, places: Any) -> PyTree:
  """Gives shapes their places.

  Args:
    tree: of arrays or shapes.
    places: shardings, a prefix of the tree.
  """

  def put(place, part):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
        ),
        part,
    )

  return jax.tree.map(put, places, tree)


def bytes_per_device(tree: PyTree) -> int:
  """Returns what placed shapes take on one device."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree)
  )


def parameters(
    policy: policy_lib.Policy, mesh: jax.sharding.Mesh
) -> PyTree:
  """Returns a policy's parameters as shapes with their places."""
  return placed(
      policy.shapes,
      sharding_lib.shardings(mesh, policy.logical_axes, policy.shapes),
  )


def reference(trainer: trainer_lib.Trainer) -> PyTree:
  """Returns what a reference policy adds, as shapes with their places.

  Nothing where the base of adapters is the reference.
  """
  stored = trainer.settings
  if trainer.policy.lora is not None and not stored.reference:
    return ()
  policy = trainer.policy.without_adapters()
  shapes = jax.eval_shape(
      lambda masters: policy.freeze(
          masters, stored.reference_dtype or "float32"
      ),
      policy.shapes,
  )
  axes = policy.axes_like(shapes)
  return placed(shapes, sharding_lib.shardings(trainer.mesh, axes, shapes))


@dataclasses.dataclass(frozen=True)
class Training:
  """The inputs of the functions of step.Steps.

  Attributes:
    params: of the policy.
    trained: the part of them that is trained.
    opt_state: of the optimizer.
    counters: see state.Counters.
    batch: a micro-batch.
    weights: its per-token weights, by term.
    sums: statistics over a mini-batch, or None.
    totals: sums over micro-batches.
  """

  params: PyTree
  trained: PyTree
  opt_state: PyTree
  counters: PyTree
  batch: types.Batch
  weights: PyTree
  sums: PyTree
  totals: step.Totals


def training(trainer: trainer_lib.Trainer) -> Training:
  """Makes the inputs of a trainer's functions."""
  mesh, steps = trainer.mesh, trainer.steps
  everywhere = sharding_lib.replicated(mesh)
  optimizer = optimizer_lib.build(trainer.settings)
  params = parameters(trainer.policy, mesh)
  trained = policy_lib.trained(params)
  rows = microbatch(trainer, trainer.terms)
  weights = placed(
      jax.eval_shape(steps.denominators, rows.terms, trainer.curation is None),
      trainer.rows,
  )
  rows = dataclasses.replace(
      rows, terms=dataclasses.replace(rows.terms, **_unpacked(trainer))
  )
  sums = None
  if trainer.needs.statistics:
    sums = placed(jax.eval_shape(steps.start_sums, params, rows), everywhere)
  totals = jax.eval_shape(steps.start, params, rows, weights, sums)
  return Training(
      params=params,
      trained=trained,
      opt_state=state_lib.abstract_opt_state(optimizer, trained),
      counters=placed(jax.eval_shape(state_lib.no_updates), everywhere),
      batch=rows,
      weights=weights,
      sums=sums,
      totals=step.Totals(
          trained,
          placed(totals.loss, everywhere),
          placed(totals.metrics, everywhere),
      ),
  )


@dataclasses.dataclass(frozen=True)
class Critic:
  """The inputs of the functions of critic.Steps, beside the policy.

  Attributes:
    state: of the critic.
    batch: a micro-batch.
    weights: its per-token weights.
    totals: sums over micro-batches.
  """

  state: state_lib.CriticState
  batch: types.Batch
  weights: PyTree
  totals: step.Totals


def critic(trainer: trainer_lib.Trainer, given: Training) -> Critic:
  """Makes the inputs of the functions of a trainer's critic."""
  steps, state = trainer.critic.steps, trainer.critic.like()
  everywhere = sharding_lib.replicated(trainer.mesh)
  batch = microbatch(trainer, critic_learning.TERMS)
  weights = placed(jax.eval_shape(steps.weights, batch.terms), trainer.rows)
  totals = jax.eval_shape(
      steps.start, state.params, given.params, batch, weights
  )
  return Critic(
      state=state,
      batch=batch,
      weights=weights,
      totals=step.Totals(
          state.params,
          placed(totals.loss, everywhere),
          placed(totals.metrics, everywhere),
      ),
  )


def microbatch(
    trainer: trainer_lib.Trainer, terms: Iterable[str]
) -> types.Batch:
  """Makes a micro-batch as packing makes it: [B, T], with prepared terms."""
  topk = trainer.needs.behavior_topk or trainer.needs.proximal_topk
  prepared = {
      name: [np.zeros((1, topk) if name.startswith("topk") else 1, np.float32)]
      for name in terms
  }
  if topk:
    prepared |= {
        "topk_ids": [np.zeros((1, topk), np.int32)],
        "topk_anchor_logprobs": [np.zeros((1, topk), np.float32)],
    }
  small = packing.assemble(
      [_record()], [[0]], tokens_per_row=4, prepared=prepared
  )
  shape = trainer.shape

  def grow(array):
    return jax.ShapeDtypeStruct(
        (shape.rows, shape.tokens, *array.shape[2:]),
        array.dtype,
        sharding=trainer.rows,
    )

  return jax.tree.map(grow, small)


def _unpacked(trainer: trainer_lib.Trainer) -> dict[str, Any]:
  """Returns the terms that no row holds: key, controls, whole sequences."""
  needs, everywhere = trainer.needs, sharding_lib.replicated(trainer.mesh)
  terms: dict[str, Any] = {}
  controls = {}
  if needs.versions:
    controls[spec_lib.VERSION_CONTROL] = jnp.int32(0)
  if trainer.settings.clip_bandit != bandit.NONE:
    controls |= dict.fromkeys(bandit.KEYS, jnp.float32(0))
  terms["controls"] = placed(controls, everywhere)
  if needs.key:
    key = jax.eval_shape(lambda: jax.random.key(0))
    terms["key"] = placed(key, everywhere)
  if needs.pairs:
    terms |= placed(
        {
            "sequence_scores": np.zeros(_SEQUENCES, np.float32),
            "sequence_groups": np.zeros(_SEQUENCES, np.int32),
        },
        everywhere,
    )
  return terms


def _record() -> types.Rollout:
  """Makes a record of one token, to see which arrays its row has."""
  one = np.zeros(1, np.float32)
  return types.Rollout(
      record_id=0,
      prompt_id=0,
      group_id=0,
      sample_index=0,
      round=0,
      prompt_tokens=np.zeros(1, np.int32),
      response_tokens=np.zeros(1, np.int32),
      response_mask=np.ones(1, bool),
      behavior_logprobs=one,
      log_kept_mass=one,
      policy_versions=np.zeros(1, np.int32),
      lineage="",
      window_start=0,
      topk_ids=np.zeros((1, 0), np.int32),
      topk_logprobs=np.zeros((1, 0), np.float32),
      finish_reason="stop",
      role="train",
      temperature=1.0,
      reward=0.0,
      reward_parts={},
      reference_answer="",
      prompt_text="",
      response_text="",
  )
