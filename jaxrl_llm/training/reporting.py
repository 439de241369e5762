"""What a round says of itself: how far it is, its numbers, its feedback."""

from collections.abc import Sequence
import dataclasses
import pathlib

import numpy as np

from jaxrl_llm import hosts
from jaxrl_llm.training import agreement
from jaxrl_llm.training import critic_learning
from jaxrl_llm.training import curate
from jaxrl_llm.training import feedback
from jaxrl_llm.training import gap
from jaxrl_llm.training import journal as journal_lib
from jaxrl_llm.training import minibatch as minibatch_lib
from jaxrl_llm.training import prepare
from jaxrl_llm.training import probe
from jaxrl_llm.training import recorded as recorded_lib
from jaxrl_llm.training import rounds
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib


def extent(
    work: rounds.Round,
    settings: settings_lib.TrainSettings,
    position: state_lib.Position,
) -> tuple[int, int]:
  """Returns the updates of the round, and those that lie behind."""
  counts = [
      work.minibatches(batch, settings.groups_per_minibatch)
      for batch in work.batches
  ]
  done = settings.epochs * sum(counts[: position.batch])
  if position.batch < len(counts):
    done += position.epoch * counts[position.batch] + position.minibatch
  return settings.epochs * sum(counts), done


def of_update(
    position: state_lib.Position, minibatch: minibatch_lib.Minibatch
) -> dict[str, float]:
  """Returns what the host can say of an update."""
  place = {
      name: getattr(position, name)
      for name in ("round", "batch", "epoch", "minibatch")
  }
  return place | dict(minibatch.known)


def write_batch(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    prepared: stored.Prepared,
    journal: journal_lib.Journal,
) -> None:
  """Writes what is known of a rollout batch before its first update."""
  batch = work.batches[state.position.batch]
  values = rounds.batch_numbers(work, state.position, trainer.settings)
  values |= trainer.controls
  terms = prepared.of(work.index.record_ids[batch.positions])
  recorded = recorded_lib.read(work.records, batch.positions)
  if "proximal_logprobs" in terms:
    found = agreement.report(
        recorded,
        terms["proximal_logprobs"],
        stale=bool(work.stale_mask[batch.positions].any())
        or not state.position.begins_round,
        compute_dtype=trainer.policy.compute_dtype,
    )
    values |= found.numbers()
    if state.position.begins_round:
      journal.bar.say(found.lines())
    if state.position.begins_round and state.position.round == 0:
      split = _explain(trainer, state, work, batch, terms)
      values |= split.numbers()
      journal.bar.say(split.lines())
  if "returns" in terms:
    values["critic/explained_variance"] = critic_learning.explained_variance(
        recorded.response_masks,
        terms["proximal_values"],
        _worth(trainer, work.index.at(batch.positions), terms),
    )
  if trainer.curation is not None:
    values |= curate.numbers(
        trainer.curation, recorded.trained_masks, terms
    )
  journal.write(state.steps + 1, "batch", values)


def _explain(trainer, state, work, batch, terms) -> gap.Gap:
  """Splits the step-0 gap; every host reads the few records."""
  chosen = probe.choose(work.index.at(batch.positions))
  return gap.explain(
      trainer.policy,
      state.params,
      work.records.at(batch.positions[chosen]),
      [terms["proximal_logprobs"][number] for number in chosen],
      trainer.mesh,
  )


def _worth(trainer, index, terms) -> Sequence[np.ndarray]:
  """Returns what a perfect critic says of each token, an [R] per record.

  Of Q(s, y) that is the response's reward, exact where objective.discount is 1
  and tokens have no rewards of their own.
  """
  if trainer.needs.critic == "state":
    return terms["returns"]
  rewards = index.rewards.tolist()
  return [np.full(n, x) for n, x in zip(index.response_lengths, rewards)]


def write_feedback(
    trainer: trainer_lib.Trainer,
    work: rounds.Round,
    workdir: pathlib.Path,
    position: state_lib.Position,
) -> None:
  """Writes the round's feedback from what was prepared; all hosts call."""
  outcomes = feedback.outcomes(work)
  hosts.first_alone(
      lambda: _write_feedback(trainer, work, workdir, position, outcomes)
  )


def _write_feedback(trainer, work, workdir, position, outcomes) -> None:
  """Reads what was prepared of each batch, and writes the file."""
  advantages: dict[int, float] = {}
  survivors: list[int] = []
  for number in range(len(work.batches)):
    path = prepare.path_of(workdir, dataclasses.replace(position, batch=number))
    prepared = stored.load(path)
    terms = prepared.of(prepared.record_ids)
    ids = prepared.record_ids.tolist()
    for record_id, value in zip(ids, terms["advantages"]):
      advantages[record_id] = float(np.mean(np.abs(value)))
    for record_id, row in zip(ids, terms.get("weights", ())):
      if np.any(row):
        survivors.append(record_id)
  feedback.write(
      feedback.path_of(workdir, position.round),
      work,
      outcomes,
      advantages,
      position.round,
      None if trainer.curation is None else frozenset(survivors),
  )
