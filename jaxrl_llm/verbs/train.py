"""Trains on rollout shards, for several epochs and off-policy.

Consumes the folders that --config.train.rollouts names as one round; without
it, the rounds under --workdir that were not trained on yet, in order. Starts
from the latest checkpoint under --workdir, else the model, and ends with a
checkpoint. Killed and started again, it goes on from the last checkpoint to
the same parameters.
"""

from collections.abc import Sequence
import dataclasses
import pathlib

import ml_collections

from jaxrl_llm.data import shards
from jaxrl_llm.losses import objective
from jaxrl_llm.models import sharding
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import loop
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.verbs import allocation
from jaxrl_llm.verbs import critics
from jaxrl_llm.verbs import distributed
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import windows

SECTIONS = (
    "seed", "mesh", "distributed", "model", "allocation", "objective",
    "critic", "curation", "train",
)


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Trains on every round that is there."""
  distributed.refuse_workers(config, "train")
  workdir = flags.require_workdir(workdir, "train")
  with folders.alone(workdir):
    _main(config, workdir)


def _main(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Does what `main` says, as the only writer."""
  parts.spec(config)  # What is wrong here shows before the model is read.
  parts.curation(config)
  parts.critic_settings(config)
  parts.train_settings(config)
  parts.check_reference(config)
  if not config.train.rollouts:
    windows.check(config)
  chosen = rounds(folders.rollouts(config.train.rollouts, workdir), config)
  record.compare(config, SECTIONS, workdir)
  model = parts.model(config, parts.tokenizer(config))
  record.agree(config, SECTIONS, workdir)
  state = start(config, model, workdir)
  before = state.updates
  left = {n: chosen[n] for n in sorted(chosen) if n >= state.position.round}
  if not left:
    print(
        "nothing to train on: the latest checkpoint lies behind these"
        " rollouts; name a new --workdir to train on others."
    )
  for number, members in left.items():
    state = allocation.pass_empty(state, workdir)
    if not config.train.rollouts:
      folders.require_round(members)
    state = round_of(config, model, state, number, members, workdir)
  if left and state.updates == before:
    print(
        "no update was made: the parameters are as they were; see the lines"
        " above, and train.keep_uniform_groups."
    )
  print(f"checkpoint: {checkpoints.latest(folders.checkpoints(workdir))}")


def rounds(
    found: Sequence[pathlib.Path], config: ml_collections.ConfigDict
) -> dict[int, list[pathlib.Path]]:
  """Groups shard folders by round; named ones are one round together."""
  if config.train.rollouts:
    return {0: list(found)}
  grouped: dict[int, list[pathlib.Path]] = {}
  for folder in found:
    grouped.setdefault(shards.read_metadata(folder).round, []).append(folder)
  return grouped


def start(
    config: ml_collections.ConfigDict,
    model: parts.Model,
    workdir: pathlib.Path,
) -> state_lib.TrainState:
  """Returns the state of the latest checkpoint, else a new one."""
  optimizer = optimizer_lib.build(parts.train_settings(config))
  critic = critics.build(config, model.policy)
  latest = checkpoints.latest(folders.checkpoints(workdir))
  if latest is not None:
    like = parts.start_like(config, model)
    critic_like = critic and critic.like()
    return checkpoints.restore(latest, like, optimizer, critic_like).state
  lineage = parts.lineage(config, model.start_params)
  state = state_lib.create(model.start_params, optimizer, lineage)
  if critic is None:
    return state
  trunk = critics.trunk(config, model)
  return dataclasses.replace(state, critic=critic.create(trunk))


def start_to_sample(
    config: ml_collections.ConfigDict,
    model: parts.Model,
    workdir: pathlib.Path,
) -> state_lib.TrainState:
  """Returns what `start` returns, for those who only sample from it.

  It has neither optimizer nor critic, and its weights before any training are
  the model's own, not a copy.
  """
  latest = checkpoints.latest(folders.checkpoints(workdir))
  if latest is not None:
    like = parts.start_like(config, model)
    return checkpoints.restore(latest, like, None).state
  return state_lib.TrainState(
      params=model.start_params,
      opt_state=None,
      counters=state_lib.no_updates(),
      position=state_lib.Position(),
      lineage=parts.lineage(config, model.start_params),
  )


def round_of(
    config: ml_collections.ConfigDict,
    model: parts.Model,
    state: state_lib.TrainState,
    number: int,
    members: Sequence[pathlib.Path],
    workdir: pathlib.Path,
) -> state_lib.TrainState:
  """Trains on one round, from where the state stands to its end."""
  spec = parts.spec(config)
  reference = None
  if objective.requirements(spec).reference:
    reference = parts.reference(config, model)
  return loop.train(
      model.policy,
      state,
      spec,
      parts.train_settings(config),
      members,
      workdir,
      tokenizer_fingerprint=model.tokenizer.fingerprint,
      seed=config.seed,
      round=number,
      reference_params=reference,
      mesh=sharding.make_mesh(config.mesh),
      config=record.select(config, config.keys()),
      curation=parts.curation(config),
      validation=parts.validation_rollouts(config, model.tokenizer),
      group_limit=parts.allocator(config).group_limit,
      critic=critics.build(config, model.policy),
  )
