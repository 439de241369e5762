"""How a critic learns from a rollout batch, before the policy does."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import plan
from jaxrl_llm.data import reading
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.training import packed
from jaxrl_llm.training import rounds
from jaxrl_llm.training import scoring
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import step
from jaxrl_llm.training import stored

# Prepared terms that the value loss reads.
TERMS = ("returns", "proximal_values")


def fit(
    critic: critic_lib.Critic,
    state: state_lib.TrainState,
    work: rounds.Round,
    prepared: stored.Prepared,
    seed: int,
) -> tuple[state_lib.CriticState, dict[str, float]]:
  """Trains the critic on a rollout batch: epochs × mini-batches.

  Args:
    critic: of the run.
    state: before the first update on the batch.
    work: the round.
    prepared: of the batch, with returns and proximal_values.
    seed: of the run.

  Returns:
    The critic's new state, and means over its updates by name.

  Raises:
    FloatingPointError: train.max_bad_updates updates in a row were skipped.
  """
  moved = state.critic
  seen: list[dict[str, float]] = []
  for rows in _minibatches(critic, state, work, seed):
    terms = prepared.of(rows.index.record_ids)
    terms = {name: terms[name] for name in TERMS}
    totals = _accumulate(critic, moved.params, state.params, rows, terms)
    *parts, outcome = critic.steps.update(
        moved.params, moved.opt_state, moved.counters, totals
    )
    moved = state_lib.CriticState(*parts)
    metrics, outcome = jax.device_get((totals.metrics, outcome))
    _stop_if_bad(critic.training, outcome)
    seen.append(
        types.finish_metrics(metrics)
        | {
            f"critic/{name}": float(outcome[name])
            for name in ("grad_norm", "learning_rate", "skipped")
        }
    )
  if not seen:
    return moved, {}
  means = {
      name: float(np.mean([values[name] for values in seen]))
      for name in seen[0]
  }
  return moved, means | {"critic/updates": int(moved.counters.updates)}


def _stop_if_bad(
    training: settings_lib.TrainSettings, outcome: Mapping[str, np.ndarray]
) -> None:
  """Ends a run whose critic learns nothing any more."""
  bad = int(outcome["bad_in_a_row"])
  if bad >= training.max_bad_updates:
    raise FloatingPointError(
        f"critic: {bad} updates in a row had a loss or gradient that is not"
        f" finite (after update {int(outcome['updates'])}),"
        " train.max_bad_updates allows no more; lower critic.learning_rate or"
        " check the rollouts with `verify`."
    )


def _minibatches(
    critic: critic_lib.Critic,
    state: state_lib.TrainState,
    work: rounds.Round,
    seed: int,
) -> Iterator[packed.Rows]:
  """Yields what each update of the critic learns from; never nothing."""
  batch = work.batches[state.position.batch]
  finished_only = critic.spec.advantage.finished_only

  def read(positions):
    rows = packed.Rows.read(
        _shape(critic),
        sharding_lib.rows(critic.mesh),
        work.records,
        work.index,
        positions,
    )
    if not finished_only:
      return rows
    # A response that is done is learned from as a whole.
    rollouts = [
        rollout and dataclasses.replace(rollout, window_start=0)
        for rollout in rows.rollouts
    ]
    return dataclasses.replace(rows, rollouts=rollouts)

  for epoch in range(critic.training.epochs):
    chosen = plan.minibatches(
        work.index,
        batch,
        seed=seed,
        # Orders of its own, apart from those of the policy's epochs.
        epoch=-1 - epoch,
        groups_per_minibatch=critic.training.groups_per_minibatch,
    )
    if finished_only:
      unfinished = work.index.unfinished_mask
      chosen = [members[~unfinished[members]] for members in chosen]
    yield from reading.read_ahead(read, [x for x in chosen if x.size])


def _accumulate(
    critic: critic_lib.Critic,
    params: types.PyTree,
    policy_params: types.PyTree,
    rows: packed.Rows,
    terms: Mapping[str, Sequence[np.ndarray]],
) -> step.Totals:
  """Dispatches the sums over the micro-batches of a mini-batch."""
  totals = None
  for piece in _pieces(critic, rows, terms):
    batch, weights = scoring.place(piece, sharding_lib.rows(critic.mesh))
    inputs = (policy_params, batch, weights)
    if totals is None:
      totals = critic.steps.start(params, *inputs)
    totals = critic.steps.add(params, totals, *inputs)
  return totals


def _pieces(critic, rows, terms):
  """Returns (batch, per-token weights) of each micro-batch, numpy."""
  batch = rows.assemble(terms)
  weights = scoring.over_whole(
      critic.steps.weights,
      batch.terms,
      rows.shape,
      sharding_lib.rows(critic.mesh),
  )
  return packed.cut((batch, weights), rows.shape.rows, rows.count)


def _shape(critic) -> scoring.Shape:
  """Of a micro-batch."""
  return scoring.Shape(
      critic.training.rows_per_microbatch, critic.training.tokens_per_row
  )


def explained_variance(
    masks: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
) -> float:
  """1 − Var(target − value) / Var(target) over the tokens; NaN if constant.

  Args:
    masks: bool, an [R] per record, the tokens that count.
    values: an [R] per record, units of reward.
    targets: likewise.
  """
  target, value = (
      np.concatenate([row[mask] for row, mask in zip(rows, masks)])
      for rows in (targets, values)
  )
  spread = np.var(target)
  return float(1.0 - np.var(target - value) / spread) if spread else math.nan
