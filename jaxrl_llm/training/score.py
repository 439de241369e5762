"""Influence scores of frozen rollouts, without training on them."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import pathlib

import jax

from jaxrl_llm import types
from jaxrl_llm.curation import influence
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import attribution
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import prepare
from jaxrl_llm.training import rounds
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib


@dataclasses.dataclass(frozen=True)
class Scored:
  """A record, its score, and the weight that training would give it."""

  rollout: types.Rollout
  score: float
  weight: float


def score(
    policy: policy_lib.Policy,
    state: state_lib.TrainState,
    spec: objective.Spec,
    settings: settings_lib.TrainSettings,
    folders: Sequence[pathlib.Path | str],
    *,
    curation: influence.Influence,
    validation: Sequence[types.Rollout],
    tokenizer_fingerprint: str | None,
    seed: int,
    mesh: jax.sharding.Mesh | None = None,
    group_limit: int | None = None,
    critic: critic_lib.Critic | None = None,
) -> Iterator[Scored]:
  """Scores every record that training would take, batch by batch.

  Every host reads and yields all of them.

  Args:
    policy: the network.
    state: whose parameters score; its optimizer preconditions if asked.
    spec: the objective behind the episodes' losses.
    settings: of the trainer.
    folders: finished shard folders, read as one round.
    curation: says which validation loss.
    validation: its records.
    tokenizer_fingerprint: of the model; None accepts any shard's.
    seed: of the run.
    mesh: devices; None takes one.
    group_limit: records of a group to train on at most; None for no limit.
    critic: of an objective that has one; its state is the state's.

  Raises:
    ValueError: folders, settings, objective or validation do not fit.
  """
  # A KL term is no part of a score; so no reference is needed.
  spec = dataclasses.replace(
      spec, regularizers=type(spec.regularizers)()
  )
  trainer = trainer_lib.build(
      policy,
      spec,
      settings,
      mesh=mesh,
      seed=seed,
      reference_params=None,
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
  state = state_lib.place(
      state, policy, optimizer_lib.build(settings), trainer.mesh
  )
  for batch in work.batches:
    with jax.set_mesh(trainer.mesh):
      prepared = prepare.compute(trainer, state, work, batch)
      found = attribution.scores(trainer, state, work, batch, prepared)
    weights = influence.survivor_weights(found.episodes, curation.reweight)
    for position, value, weight in zip(
        batch.positions, found.episodes, weights
    ):
      yield Scored(work.records[int(position)], float(value), float(weight))
