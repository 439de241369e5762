"""The training loop over one round: rollout batches, epochs, mini-batches."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
import pathlib
from typing import Any

import jax

from jaxrl_llm import types
from jaxrl_llm.curation import methods
from jaxrl_llm.data import plan
from jaxrl_llm.data import reading
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import bandit
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.training import critic_learning
from jaxrl_llm.training import journal as journal_lib
from jaxrl_llm.training import metrics
from jaxrl_llm.training import minibatch as minibatch_lib
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import packed
from jaxrl_llm.training import preemption
from jaxrl_llm.training import prepare
from jaxrl_llm.training import reporting
from jaxrl_llm.training import rounds
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import step
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib

PyTree = types.PyTree
TrainState = state_lib.TrainState


def train(
    policy: policy_lib.Policy,
    state: TrainState,
    spec: objective.Spec,
    settings: settings_lib.TrainSettings,
    folders: Sequence[pathlib.Path | str],
    workdir: pathlib.Path | str,
    *,
    tokenizer_fingerprint: str | None,
    seed: int,
    round: int,
    reference_params: PyTree | None = None,
    mesh: jax.sharding.Mesh | None = None,
    config: Mapping[str, Any] | None = None,
    curation: methods.Step | None = None,
    validation: Sequence[types.Rollout] = (),
    group_limit: int | None = None,
    critic: critic_lib.Critic | None = None,
) -> TrainState:
  """Trains on one round's folders, from where the state stands, to its end.

  Called again with a state restored from `workdir`/checkpoints it goes on as
  if never interrupted; with a state beyond the round it returns at once.

  Args:
    policy: the network.
    state: from state.create or checkpoints.restore; consumed.
    spec: the objective.
    settings: of the trainer.
    folders: every rollout folder of the round, finished.
    workdir: receives checkpoints/, prepared/, feedback/, metrics.jsonl and
      tensorboard/.
    tokenizer_fingerprint: of the model; None accepts any shard's.
    seed: of the run.
    round: that the folders belong to.
    reference_params: of the reference policy, if the objective has one.
    mesh: devices; None takes one.
    config: JSON object saved in checkpoints.
    curation: step between reward and loss; None trains on every record.
    validation: records behind the validation gradient of influence.
    group_limit: records of a group to train on at most; None for no limit.
    critic: of an objective that has one; its state is the state's.

  Returns:
    The state at the beginning of the next round, also saved.

  Raises:
    ValueError: the folders, settings or state do not fit; one line.
    FloatingPointError: train.max_bad_updates updates in a row were skipped.
    SystemExit: a signal asked for it, and the state is saved.
  """
  if state.position.round > round:
    return state
  if state.position.round < round:
    raise ValueError(
        f"train: expected the state at round {round}, found it at round"
        f" {state.position.round}; train the rounds in order."
    )
  workdir = pathlib.Path(workdir)
  trainer = trainer_lib.build(
      policy,
      spec,
      settings,
      mesh=mesh,
      seed=seed,
      reference_params=reference_params,
      curation=curation,
      validation=validation,
      critic=critic,
  )
  work = rounds.open_round(
      folders,
      spec,
      settings,
      tokenizer_fingerprint=tokenizer_fingerprint,
      seed=seed,
      position=state.position,
      lineage=state.lineage,
      fingerprint=functools.partial(policy_lib.fingerprint, state.params),
      group_limit=group_limit,
  )
  trainer_lib.check_round(trainer, work.weights, work.index.unfinished_mask)
  if settings.clip_bandit != bandit.NONE:
    reward = rounds.numbers(work, round)["reward"]
    bounds = bandit.controls(settings, workdir, round, reward)
    trainer = dataclasses.replace(trainer, controls=bounds)
  save = functools.partial(
      checkpoints.save,
      workdir / "checkpoints",
      kept=settings.checkpoints_kept,
      config=dict(config or {}),
  )
  optimizer = optimizer_lib.build(settings)
  state = state_lib.place(state, policy, optimizer, trainer.mesh)
  with jax.set_mesh(trainer.mesh), preemption.during_training():
    return _train_round(trainer, state, work, workdir, save)


def _train_round(
    trainer: trainer_lib.Trainer,
    state: TrainState,
    work: rounds.Round,
    workdir: pathlib.Path,
    save: Callable[[TrainState], Any],
) -> TrainState:
  """Runs the rollout batches of a round that are left."""
  number = state.position.round
  total, done = 0, 0
  if not _pretrains(trainer, number):
    total, done = reporting.extent(work, trainer.settings, state.position)
  with (
      contextlib.closing(
          metrics.MetricsWriter(workdir, state.steps, number)
      ) as writer,
      metrics.ProgressBar(total, done, f"round {number}") as bar,
  ):
    journal = journal_lib.Journal(
        writer, bar, trainer.settings.max_bad_updates
    )
    if state.position.begins_round:
      bar.say([f"round {number}: {rounds.tally(work)}"])
    if not work.batches:
      bar.say([f"round {number}: {rounds.idle_reason(work)}"])
      journal.write(state.steps + 1, "batch", rounds.numbers(work, number))
    while state.position.batch < len(work.batches):
      prepared = prepare.obtain(trainer, state, work, workdir)
      if state.position.begins_batch:
        reporting.write_batch(trainer, state, work, prepared, journal)
        state = _fit_critic(trainer, state, work, prepared, journal)
      if not _pretrains(trainer, number):
        state = _train_batch(trainer, state, work, prepared, journal, save)
      state = _at(state, state.position.next_batch(state.updates))
    journal.flush()
    reporting.write_feedback(trainer, work, workdir, state.position)
    state = _at(state, state.position.next_round(state.updates))
    save(state)
  if preemption.asked():
    preemption.leave(f"round {number} is saved")
  return state


def _pretrains(trainer: trainer_lib.Trainer, number: int) -> bool:
  """Whether a round trains the critic alone."""
  return trainer.critic is not None and trainer.critic.pretrains(number)


def _fit_critic(
    trainer: trainer_lib.Trainer,
    state: TrainState,
    work: rounds.Round,
    prepared: stored.Prepared,
    journal: journal_lib.Journal,
) -> TrainState:
  """Trains the critic on the rollout batch that begins, if it still learns."""
  number = state.position.round
  if trainer.critic is None or not trainer.critic.learns(number):
    return state
  moved, values = critic_learning.fit(
      trainer.critic, state, work, prepared, trainer.seed
  )
  place = {"round": number, "batch": state.position.batch}
  journal.write(state.steps + 1, "critic", place | values)
  if _pretrains(trainer, number):
    journal.bar.say([
        f"round {number}: the critic learned alone"
        f" (critic.pretrain_rounds={trainer.critic.settings.pretrain_rounds}),"
        f" mean loss {values.get('critic/loss', math.nan):.4g}."
    ])
  return dataclasses.replace(state, critic=moved)


def _train_batch(
    trainer: trainer_lib.Trainer,
    state: TrainState,
    work: rounds.Round,
    prepared: stored.Prepared,
    journal: journal_lib.Journal,
    save: Callable[[TrainState], Any],
) -> TrainState:
  """Runs the epochs over one rollout batch."""
  settings = trainer.settings
  batch = work.batches[state.position.batch]
  number = state.steps
  read = functools.partial(
      packed.Rows.read, trainer.shape, trainer.read_rows, work.records,
      work.index,
  )
  while state.position.epoch < settings.epochs:
    minibatches = plan.minibatches(
        work.index,
        batch,
        seed=trainer.seed,
        epoch=state.position.epoch,
        groups_per_minibatch=settings.groups_per_minibatch,
    )
    for rows in reading.read_ahead(
        read, minibatches, state.position.minibatch
    ):
      terms = prepared.of(rows.index.record_ids)
      terms = {k: v for k, v in terms.items() if k in trainer.terms}
      minibatch = minibatch_lib.build_rows(trainer, rows, terms)
      if not minibatch.pieces:
        journal.bar.advance(0, {})
        state = _at(state, state.position.next_minibatch())
        continue
      totals = minibatch_lib.accumulate(
          trainer, state.params, minibatch, number, state.counters.updates
      )
      if _should_stop(trainer, totals):
        return state
      number += 1
      state, outcome = _update(trainer, state, totals)
      known = reporting.of_update(state.position, minibatch)
      journal.add(
          journal_lib.Entry(
              number, totals.metrics, outcome, known, minibatch.tokens
          )
      )
      state = _at(state, state.position.next_minibatch())
      leaves = preemption.due(number)
      if work.ends_with(state.position, settings.epochs, len(minibatches)):
        continue
      if leaves or number % settings.checkpoint_every == 0:
        journal.flush()
        save(state)
      if leaves:
        preemption.leave(f"update {state.updates} is saved")
    state = _at(state, state.position.next_epoch())
  return state


def _update(
    trainer: trainer_lib.Trainer, state: TrainState, totals: step.Totals
) -> tuple[TrainState, dict[str, jax.Array]]:
  """Dispatches one optimizer update."""
  params, opt_state, counters, outcome = trainer.steps.update(
      state.params, state.opt_state, state.counters, totals
  )
  state = dataclasses.replace(
      state, params=params, opt_state=opt_state, counters=counters
  )
  return state, outcome


def _should_stop(trainer: trainer_lib.Trainer, totals: step.Totals) -> bool:
  """Whether the objective ends the epochs before this update."""
  if trainer.needs.stop_deviation is None:
    return False
  finished = types.finish_metrics(jax.device_get(totals.metrics))
  return objective.should_stop(trainer.spec, finished)


def _at(state: TrainState, position: state_lib.Position) -> TrainState:
  return dataclasses.replace(state, position=position)
