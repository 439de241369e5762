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
_TERMS = ("returns", "proximal_values")


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
  for rollouts in _minibatches(critic, state, work, seed):
    terms = prepared.of([rollout.record_id for rollout in rollouts])
    terms = {name: terms[name] for name in _TERMS}
    totals = _accumulate(critic, moved.params, state.params, rollouts, terms)
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
) -> Iterator[Sequence[types.Rollout]]:
  """Yields what each update of the critic learns from; never nothing."""
  batch = work.batches[state.position.batch]
  for epoch in range(critic.training.epochs):
    chosen = plan.minibatches(
        work.index,
        batch,
        seed=seed,
        # Orders of its own, apart from those of the policy's epochs.
        epoch=-1 - epoch,
        groups_per_minibatch=critic.training.groups_per_minibatch,
    )
    for rollouts in reading.read_ahead(work.records, chosen, 0):
      if critic.spec.advantage.finished_only:
        rollouts = [
            dataclasses.replace(rollout, window_start=0)
            for rollout in rollouts
            if not rollout.unfinished
        ]
      if rollouts:
        yield rollouts


def _accumulate(
    critic: critic_lib.Critic,
    params: types.PyTree,
    policy_params: types.PyTree,
    rollouts: Sequence[types.Rollout],
    terms: Mapping[str, Sequence[np.ndarray]],
) -> step.Totals:
  """Dispatches the sums over the micro-batches of a mini-batch."""
  totals = None
  for piece in _pieces(critic, rollouts, terms):
    batch, weights = scoring.place(piece, sharding_lib.rows(critic.mesh))
    inputs = (policy_params, batch, weights)
    if totals is None:
      totals = critic.steps.start(params, *inputs)
    totals = critic.steps.add(params, totals, *inputs)
  return totals


def _pieces(critic, rollouts, terms):
  """Returns (batch, per-token weights) of each micro-batch, numpy."""
  shape = scoring.Shape(
      critic.training.rows_per_microbatch, critic.training.tokens_per_row
  )
  rows = packed.Rows.pack(shape, rollouts)
  batch = rows.assemble(terms)
  weights = jax.device_get(critic.steps.weights(batch.terms))
  return packed.cut((batch, weights), shape.rows, rows.count)


def explained_variance(
    rollouts: Sequence[types.Rollout],
    values: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
) -> float:
  """1 − Var(target − value) / Var(target) over the tokens; NaN if constant.

  Args:
    rollouts: N records.
    values: an [R] per record, units of reward.
    targets: likewise.
  """
  masks = [rollout.response_mask for rollout in rollouts]
  target, value = (
      np.concatenate([row[mask] for row, mask in zip(rows, masks)])
      for rows in (targets, values)
  )
  spread = np.var(target)
  return float(1.0 - np.var(target - value) / spread) if spread else math.nan
