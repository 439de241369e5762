"""Influence scores of a rollout batch with the model: direction, scores."""

from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import packing
from jaxrl_llm.data import plan
from jaxrl_llm.training import influence_steps
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import rounds
from jaxrl_llm.training import scoring
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib

PyTree = types.PyTree


@dataclasses.dataclass(frozen=True)
class Scores:
  """Influence of the N records of a rollout batch.

  Attributes:
    episodes: float64 [N], ⟨∇L_i, v⟩ with v of norm 1.
    tokens: N arrays float32 [R]; those of a record add up to its score.
  """

  episodes: np.ndarray
  tokens: Sequence[np.ndarray]


def scores(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    batch: plan.RolloutBatch,
    prepared: stored.Prepared,
    direction: PyTree | None = None,
) -> Scores:
  """Scores a rollout batch with the weights that it begins with.

  Args:
    trainer: of a run whose curation reads scores.
    state: before the first update on the batch.
    work: the round.
    batch: of the round.
    prepared: its terms.
    direction: v; None makes it with the same weights.
  """
  if direction is None:
    direction = direction_of(trainer, state, work, batch, prepared)
  steps = _steps(trainer)
  number, version = state.steps, state.counters.updates
  sums = None
  if trainer.needs.statistics:
    sums = _statistics(trainer, state, work, batch, prepared)

  def score(placed: types.Batch) -> dict[str, jax.Array]:
    placed = minibatch.complete(trainer, placed, number, version)
    found = steps.scores(state.params, direction, placed, sums)
    return {"scores": found}

  tokens = _over_batch(trainer, score, work, batch, prepared)["scores"]
  totals = [row.sum(dtype=np.float64) for row in tokens]
  return Scores(np.array(totals), tokens)


def _steps(trainer: trainer_lib.Trainer) -> influence_steps.Steps:
  return influence_steps.build(
      trainer.policy, trainer.spec, trainer.settings.epsilon, trainer.mesh
  )


def _over_batch(trainer, score, work, batch, prepared):
  """Runs a function over the batch's records, prepared terms at hand."""
  terms = prepared.of(work.index.record_ids[batch.positions])
  return scoring.over_records(
      score,
      work.records,
      work.index,
      batch.positions,
      trainer.shape,
      trainer.rows,
      {k: v for k, v in terms.items() if k in trainer.terms - {"weights"}},
  )


def _statistics(trainer, state, work, batch, prepared) -> PyTree:
  """Returns the objective's sums over the rollout batch."""
  params, version = state.params, state.counters.updates
  found = []

  def add(placed: types.Batch) -> dict[str, jax.Array]:
    placed = minibatch.complete(trainer, placed, state.steps, version)
    sums = found.pop() if found else trainer.steps.start_sums(params, placed)
    found.append(trainer.steps.add_sums(params, sums, placed))
    return {}

  _over_batch(trainer, add, work, batch, prepared)
  return found[0]


def direction_of(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    batch: plan.RolloutBatch,
    prepared: stored.Prepared,
) -> PyTree:
  """Returns v: the validation gradient, preconditioned if asked, of norm 1.

  The validation loss is −Σ A_t log π(y_t) / Σ 1 over the trained tokens of the
  validation records; with A = 1 that is the token mean of the NLL. Every host
  reads all of them.
  """
  if trainer.curation.validation == "batch":
    rollouts = [work.records[int(n)] for n in batch.positions]
    advantages = prepared.of([r.record_id for r in rollouts])["advantages"]
  else:
    rollouts, advantages = _validation(trainer)
  masks = [indices.trained_mask(rollout) for rollout in rollouts]
  count = sum(int(mask.sum()) for mask in masks)
  weights = [
      np.broadcast_to(values, mask.shape).astype(np.float32) / count
      for values, mask in zip(advantages, masks)
  ]
  steps = _steps(trainer)
  gradient = steps.start(state.params)
  shape = trainer.shape
  rows = packing.pack_rollouts(rollouts, shape.tokens)
  for start in range(0, len(rows), shape.rows):
    piece = packing.assemble(
        rollouts,
        rows[start : start + shape.rows],
        tokens_per_row=shape.tokens,
        rows_per_microbatch=shape.rows,
        prepared={"weights": weights},
    )
    # What is recorded of the policy that sampled is of no concern here.
    terms = types.Terms(piece.terms.mask, weights=piece.terms.weights)
    piece = scoring.place(
        dataclasses.replace(piece, terms=terms), trainer.rows
    )
    gradient = steps.add(
        state.params, gradient, piece, piece.terms.weights
    )
  moments = None
  if trainer.curation.precondition:
    moments = optimizer_lib.second_moments(state.opt_state, trainer.settings)
  return steps.point(gradient, moments)


def _validation(trainer):
  """Returns the validation records, and the advantage of each."""
  rollouts = list(trainer.validation)
  rewards = np.array([rollout.reward for rollout in rollouts], np.float32)
  if trainer.curation.validation == "sft":
    chosen = [r for r, reward in zip(rollouts, rewards) if reward > 0]
    return chosen, [1.0] * len(chosen)
  groups = [rollout.group_id for rollout in rollouts]
  numbers = np.unique(groups, return_inverse=True)[1]
  lengths = [int(indices.trained_mask(r).sum()) for r in rollouts]
  advantages = trainer.steps.advantages(
      jnp.asarray(rewards),
      jnp.asarray(numbers, jnp.int32),
      jnp.asarray(lengths),
  )
  return rollouts, list(np.asarray(advantages, np.float32))
