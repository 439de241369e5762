"""The shards that several objectives read alike, from the same start."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import pathlib

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import plan
from jaxrl_llm.lab import objectives
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import rounds
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib


@dataclasses.dataclass(frozen=True)
class Bench:
  """What every objective of a replay shares.

  Attributes:
    policy: the network.
    params: that each objective starts from.
    settings: of the trainer.
    folders: of the shards, read as one round.
    tokenizer_fingerprint: of the model; None accepts any shard's.
    lineage: of the start policy.
    seed: of order and noise.
    mesh: devices.
    updates: mini-batches between the two that are measured.
  """

  policy: policy_lib.Policy
  params: types.PyTree
  settings: settings_lib.TrainSettings
  folders: Sequence[pathlib.Path]
  tokenizer_fingerprint: str | None
  lineage: str
  seed: int
  mesh: jax.sharding.Mesh
  updates: int


@dataclasses.dataclass(frozen=True)
class Place:
  """A mini-batch in the order of training.

  Attributes:
    position: of the trainer before it.
    records: int64, positions of its records.
  """

  position: state_lib.Position
  records: np.ndarray


def open_round(bench: Bench, entry: objectives.Entry) -> rounds.Round:
  """Opens the shards for one objective, on the records that all share.

  Raises:
    ValueError: the shards lack what the objective needs.
  """
  work = rounds.open_round(
      bench.folders,
      entry.spec,
      bench.settings,
      tokenizer_fingerprint=bench.tokenizer_fingerprint,
      seed=bench.seed,
      position=state_lib.Position(),
      lineage=bench.lineage,
      fingerprint=functools.partial(policy_lib.fingerprint, bench.params),
  )
  problem = objectives.lacking(entry.spec, work.index)
  if problem:
    raise ValueError(f"objective.name: {entry.spec.name}: {problem}.")
  # Not the objective's own selection: one may train on groups of equal
  # rewards, or leave out failures, and the batches would differ.
  selection = plan.select(
      work.index,
      tokens_per_row=bench.settings.tokens_per_row,
      keep_uniform_groups=bench.settings.keep_uniform_groups,
      max_staleness=bench.settings.max_staleness,
      policy_version=0,
      lineage=bench.lineage,
  )
  batches = plan.rollout_batches(
      work.index,
      selection,
      seed=bench.seed,
      groups_per_batch=bench.settings.groups_per_batch,
  )
  return dataclasses.replace(work, selection=selection, batches=batches)


def schedule(bench: Bench, work: rounds.Round) -> Iterator[Place]:
  """Yields the mini-batches in the order of training."""
  for number, batch in enumerate(work.batches):
    for epoch in range(bench.settings.epochs):
      minibatches = plan.minibatches(
          work.index,
          batch,
          seed=bench.seed,
          epoch=epoch,
          groups_per_minibatch=bench.settings.groups_per_minibatch,
      )
      for place, records in enumerate(minibatches):
        yield Place(state_lib.Position(0, number, epoch, place), records)


def places(bench: Bench, work: rounds.Round) -> list[Place]:
  """The mini-batches up to the second that is measured.

  Raises:
    ValueError: there are not so many.
  """
  found = list(schedule(bench, work))
  if not found:
    raise ValueError(
        "lab.shards: expected a group with unequal rewards, found none; name"
        " other shards, or set train.keep_uniform_groups."
    )
  if not 1 <= bench.updates < len(found):
    raise ValueError(
        "lab.updates: expected 1 or more and less than the"
        f" {len(found)} mini-batches that train.epochs and"
        f" train.groups_per_minibatch make of the shards, found"
        f" {bench.updates}; correct one of them."
    )
  return found[: bench.updates + 1]


def check(bench: Bench, entry: objectives.Entry) -> str:
  """Says why an objective cannot be replayed on the shards; empty if it can."""
  if entry.problem:
    return entry.problem
  try:
    trainer = build(bench, entry, bench.params)
    work = open_round(bench, entry)
    trainer_lib.check_round(trainer, work.weights, work.index.unfinished_mask)
  except ValueError as error:
    return str(error)
  return ""


def build(
    bench: Bench, entry: objectives.Entry, reference: types.PyTree
) -> trainer_lib.Trainer:
  """Makes the trainer of one objective.

  Raises:
    ValueError: the objective needs a critic or more ids than there are, or
      settings do not fit.
  """
  needs = objective.requirements(entry.spec)
  ids = bench.policy.config.vocab_size
  if needs.proximal_topk > ids:
    raise ValueError(
        f"objective.selection_topk: {entry.spec.name} reads the top"
        f" {needs.proximal_topk} ids, and the model has {ids}; lower it."
    )
  if needs.critic:
    raise ValueError(
        f"objective.name: {entry.spec.name} takes its advantages from a"
        " critic, and a replay trains none."
    )
  return trainer_lib.build(
      bench.policy,
      entry.spec,
      bench.settings,
      mesh=bench.mesh,
      seed=bench.seed,
      reference_params=reference,
  )
