"""Generates one round of rollout shards with the current policy.

The policy is the latest checkpoint under --workdir, else the model; the round
is the one that training comes to next. Shards lie in
rollouts/round_K/host_000. Killed and started again, it writes the shards that
are missing, with the bytes that they would have had. Each of many hosts, and
each of --worker=0/N to --worker=N-1/N that are started by hand, writes a folder
of its own.
"""

import pathlib

import ml_collections

from jaxrl_llm import hosts
from jaxrl_llm.data import manifest
from jaxrl_llm.data import schema
from jaxrl_llm.losses import objective
from jaxrl_llm.rollout import generator
from jaxrl_llm.rollout import planning
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.verbs import allocation
from jaxrl_llm.verbs import distributed
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import train
from jaxrl_llm.verbs import windows

# What a shard's bytes depend on; it must not change within a workdir.
RECORDED = (
    "seed", "model", "prompts", "sampling", "generation", "allocation",
    "reward",
)
SECTIONS = (
    "seed", "mesh", "distributed", "model", "prompts", "sampling",
    "generation", "allocation", "reward", "objective", "critic", "curation",
    "train", "run",
)
SHORT_FLAGS = {"worker": "distributed.worker"}


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Generates the next round and prints its numbers and its folder."""
  workdir = flags.require_workdir(workdir, "generate")
  with folders.alone(workdir, config.distributed.worker):
    _main(config, workdir)


def _main(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Does what `main` says, as the only writer."""
  windows.check(config)
  check_shards(config)
  job = parts.job(config)
  record.agree(config, RECORDED, workdir)
  state = train.start_to_sample(config, job.model, workdir)
  state, plan = allocation.next_plan(job, state, workdir)
  folder = round_of(job, state, plan, workdir)
  print(f"shards: {folder}")


def check_shards(config: ml_collections.ConfigDict) -> None:
  """Refuses, before anything is recorded, a round that leaves a host without.

  Raises:
    ValueError: naming the key.
  """
  settings = parts.generation_settings(config)
  needs = objective.requirements(parts.spec(config))
  planned = planning.plan(
      [settings.samples_per_prompt] * settings.prompts_per_round,
      settings.records_per_shard,
      needs.greedy_baseline,
  )
  count = distributed.share(config)[1]
  if len(planned) < count:
    raise ValueError(
        f"generation.records_per_shard: expected shards for {count} hosts,"
        f" found {len(planned)} of up to {settings.records_per_shard} records"
        " in a round; lower it, or start fewer hosts."
    )


def round_of(
    job: parts.Job,
    state: state_lib.TrainState,
    plan: allocation.Plan,
    workdir: pathlib.Path,
) -> pathlib.Path:
  """Generates what is missing of a round.

  Args:
    job: model, prompts, grader.
    state: holds the policy that generates, its version and lineage.
    plan: of the round, not empty.
    workdir: receives the shards.

  Returns:
    The folder of the round's shards.
  """
  number = state.position.round
  needs = objective.requirements(parts.spec(job.config))
  host, hosts_ = distributed.share(job.config)
  folder = folders.host_folder(workdir, number, host)
  described = record.select(job.config, ("model", "prompts", "reward"))
  if plan.weights:
    ids = [str(prompt.prompt_id) for prompt in plan.prompts]
    described[schema.PROMPT_WEIGHTS] = dict(zip(ids, plan.weights))
  stats = generator.generate_round(
      job.model.policy,
      parts.generating_copy(job.config, job.model.policy, state.params),
      job.model.tokenizer,
      plan.prompts,
      plan.counts,
      parts.sampling_settings(job.config),
      parts.generation_settings(job.config),
      folder=folder,
      version=state.updates,
      lineage=state.lineage,
      round_number=number,
      seed=job.config.seed,
      grader=job.grader,
      continued=plan.continued,
      config=described,
      baselines=needs.greedy_baseline,
      host=host,
      hosts=hosts_,
      mesh=parts.generating_mesh(job.config),
      masters=state.params,
  )
  print(f"round {number}: {stats}")
  hosts.wait_for(
      folders.host_folder(workdir, number, other) / manifest.NAME
      for other in range(hosts_)
  )
  return folder
