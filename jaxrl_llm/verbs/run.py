"""Runs the whole job: evaluate, rounds of generate and train, evaluate.

Writes report.html anew after each round. Ends with a table (before, after,
gain with intervals) and the paths of report and checkpoint. Stopped anywhere,
the same command resumes; finished, it shows the table again.
--config.run.rounds may be raised to go on.
"""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

import jax
import ml_collections

from jaxrl_llm import hosts
from jaxrl_llm.allocation import registry
from jaxrl_llm.data import atomic
from jaxrl_llm.evaluation import evaluate as evaluate_lib
from jaxrl_llm.lab import report as report_lib
from jaxrl_llm.losses import objective
from jaxrl_llm.models import sharding
from jaxrl_llm.training import bandit
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib
from jaxrl_llm.verbs import allocation
from jaxrl_llm.verbs import critics
from jaxrl_llm.verbs import distributed
from jaxrl_llm.verbs import evaluate
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import generate
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import report
from jaxrl_llm.verbs import train
from jaxrl_llm.verbs import windows

SECTIONS = (
    "seed", "mesh", "distributed", "model", "prompts", "sampling",
    "generation", "allocation", "reward", "objective", "critic", "curation",
    "train", "run", "evaluation", "report",
)
# Progress: rounds evaluated, and the folder of each evaluation by title.
FILE = "run.json"
BEFORE = "before"


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Brings the run to its end from wherever it stands."""
  distributed.refuse_workers(config, "run")
  workdir = flags.require_workdir(workdir, "run")
  with folders.alone(workdir):
    _main(config, workdir)


def _main(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Does what `main` says, as the only writer."""
  if config.run.rounds < 1:
    raise ValueError(
        f"run.rounds: expected at least 1, found {config.run.rounds}."
    )
  record.compare(config, SECTIONS, workdir)
  # Hosts that start late must not see what an early one has done since.
  progress = json.loads(hosts.agree(json.dumps(_read(workdir))))
  if progress["rounds"] < config.run.rounds:
    progress = _advance(config, workdir, progress)
  _finish(config, workdir, progress)


def _advance(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    progress: dict[str, Any],
) -> dict[str, Any]:
  """Does the rounds that are missing; returns the progress."""
  check_training(config)
  generate.check_shards(config)
  print(objective.describe(parts.spec(config)))
  print(arithmetic(config))
  print(registry.describe(config.allocation.name, parts.allocator(config)))
  job = parts.job(config)
  critics.check(job)
  shortest = min(prompt.tokens.size for prompt in job.train_prompts)
  if shortest >= config.train.tokens_per_row:
    raise ValueError(
        f"train.tokens_per_row: the shortest prompt has {shortest} tokens,"
        f" expected room for a response too, found"
        f" {config.train.tokens_per_row}; raise it."
    )
  trainer_lib.check_curation(
      parts.curation(config),
      parts.validation_rollouts(config, job.model.tokenizer),
      parts.spec(config),
  )
  record.agree(config, SECTIONS, workdir)
  state = train.start(config, job.model, workdir)
  if BEFORE not in progress["evaluations"]:
    print("evaluating before training; the first steps of each kind compile")
    _, folder = evaluate.of(job, job.model.start_params, 0, workdir)
    progress = _note(workdir, progress, BEFORE, folder, 0)
  every = config.evaluation.every_rounds
  while True:
    done = state.position.round
    due = done == config.run.rounds or (every and done % every == 0)
    title = f"after round {done}"
    if done and due and title not in progress["evaluations"]:
      print(f"evaluating {title}")
      _, folder = evaluate.of(job, state.params, state.updates, workdir)
      progress = _note(workdir, progress, title, folder, done)
    report.refresh(job, state, workdir)
    if done >= config.run.rounds:
      windows.say_left(config, workdir, done)
      return progress
    state = round_of(job, state, workdir)


def check_training(config: ml_collections.ConfigDict) -> None:
  """Refuses, before a round is generated for it, what cannot be trained.

  Raises:
    ValueError: naming the key.
  """
  sharding.check_rows(
      "train.rows_per_microbatch",
      config.train.rows_per_microbatch,
      sharding.make_mesh(config.mesh),
  )
  windows.check(config)
  parts.check_reference(config)
  spec = parts.spec(config)
  bandit.check(parts.train_settings(config), spec)
  needs = objective.requirements(spec)
  if config.sampling.record_topk < needs.behavior_topk:
    raise ValueError(
        f"sampling.record_topk: expected at least {needs.behavior_topk}, which"
        f" {config.objective.name} reads, found {config.sampling.record_topk};"
        " raise it."
    )


def arithmetic(config: ml_collections.ConfigDict) -> str:
  """Says what the numbers of the configuration multiply to."""
  generation, train_ = config.generation, config.train
  groups, samples = generation.prompts_per_round, generation.samples_per_prompt
  batch = min(train_.groups_per_batch or groups, groups)
  updates = train_.epochs * -(-batch // train_.groups_per_minibatch)
  critic = parts.critic_settings(config)
  alone = ""
  if critic is not None and critic.pretrain_rounds:
    rounds = critic.pretrain_rounds
    alone = f"; the first {rounds} rounds train the critic alone"
  return (
      f"{config.run.rounds} rounds of {groups} prompts × {samples} samples ="
      f" {groups * samples} responses; on each {batch} groups, {train_.epochs}"
      f" epochs in mini-batches of {train_.groups_per_minibatch}: at most"
      f" {updates} updates, so the last is {updates - 1} updates off-policy"
      f"{alone}"
  )


def round_of(
    job: parts.Job, state: state_lib.TrainState, workdir: pathlib.Path
) -> state_lib.TrainState:
  """Generates a round, unless training is in its middle, and trains on it."""
  number = state.position.round
  if state.position.begins_round:
    state = allocation.informed(job, state, workdir)
    plan = allocation.plan(job, state, workdir)
    if not plan.counts:
      return allocation.leave_out(state, workdir)
    generate.round_of(job, state, plan, workdir)
  members = sorted(folders.round_folder(workdir, number).glob("host_*"))
  folders.require_round(members)
  return train.round_of(job.config, job.model, state, number, members, workdir)


def _finish(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    progress: Mapping[str, Any],
) -> None:
  """Prints the table, names report and checkpoint."""
  if jax.process_index():
    return
  found = {
      title: evaluate_lib.load(workdir / name)
      for title, name in progress["evaluations"].items()
  }
  evaluate.show(found, config.evaluation.confidence)
  page = workdir / report_lib.FILE
  absent = f"none; python -m jaxrl_llm report --workdir={workdir} writes it"
  print(f"report:     {page if page.is_file() else absent}")
  print(f"checkpoint: {checkpoints.latest(folders.checkpoints(workdir))}")


def _read(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads run.json; an absent one is a run that has not begun."""
  path = workdir / FILE
  if not path.is_file():
    return {"rounds": 0, "evaluations": {}}
  return atomic.read_json(
      path,
      ("rounds", "evaluations"),
      "restore it, or delete it: what is finished is found again",
  )


def _note(
    workdir: pathlib.Path,
    progress: Mapping[str, Any],
    title: str,
    folder: pathlib.Path,
    rounds: int,
) -> dict[str, Any]:
  """Adds an evaluation to run.json; returns the new progress."""
  evaluations = dict(progress["evaluations"])
  evaluations[title] = str(folder.relative_to(workdir))
  progress = {"rounds": rounds, "evaluations": evaluations}
  if jax.process_index() == 0:
    atomic.write_json(workdir / FILE, progress)
  return progress
