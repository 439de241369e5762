"""Plans a round with the allocator, and tells it what came of the last ones.

The state of the allocator travels with that of the trainer, so a checkpoint
holds it. It may lag: what finished since is read from feedback/ before a
round is planned. The plan is written to allocation/ before anything of the
round is generated, and from then on it is what counts.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from jaxrl_llm import hosts
from jaxrl_llm import types
from jaxrl_llm.allocation import interface
from jaxrl_llm.data import atomic
from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.training import feedback
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import rounds
from jaxrl_llm.verbs import windows

TrainState = state_lib.TrainState


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a round generates; nothing where the allocator leaves it out.

  Attributes:
    prompts: those with responses that go on, then those that are posed.
    counts: new responses of each, 0 for the former.
    continued: unfinished responses of the round before.
    weights: what the loss of each prompt is multiplied by; empty for 1.
  """

  prompts: Sequence[prompts_lib.Prompt]
  counts: Sequence[int]
  continued: Sequence[types.Rollout] = ()
  weights: Sequence[float] = ()


def informed(
    job: parts.Job, state: TrainState, workdir: pathlib.Path
) -> TrainState:
  """Lets the allocator observe all rounds that lie behind.

  Args:
    job: of the run.
    state: at the beginning of a round.
    workdir: holds feedback/.

  Returns:
    The state with the allocation that the coming round is planned with.

  Raises:
    ValueError: the feedback of a round is missing.
  """
  allocator = parts.allocator(job.config)
  if not allocator.learns:
    return state
  memory = _memory(job, allocator, state)
  ids = [prompt.prompt_id for prompt in _pool(job)]
  for number in range(memory.rounds_seen, state.position.round):
    groups = feedback.read(feedback.path_of(workdir, number))
    outcomes = interface.Outcomes.of(groups, ids)
    memory = allocator.observe(memory, outcomes)
  return dataclasses.replace(state, allocation=interface.to_json(memory))


def plan(job: parts.Job, state: TrainState, workdir: pathlib.Path) -> Plan:
  """Reads the plan of the coming round, or makes and writes it.

  Unfinished responses of the round before take part first. They count as
  responses of the budget, and their prompts wait until all have ended.

  Args:
    job: of the run.
    state: of `informed`.
    workdir: holds allocation/, and rollouts/ of the round before.

  Raises:
    ValueError: the shards of that round are missing where responses go on, or
      the plan was made for others.
  """
  number = state.position.round
  path = folders.round_plan(workdir, number)
  continued = windows.unfinished(job.config, workdir, number)
  if path.is_file():
    return _read(path, job, continued)
  allocator = parts.allocator(job.config)
  budget = parts.budget(job.config)
  pool = _pool(job)
  place = {prompt.prompt_id: index for index, prompt in enumerate(pool)}
  turn = rounds.turn_of(
      job.train_prompts, number, budget.prompts, job.config.seed
  )
  order = [place[prompt.prompt_id] for prompt in turn]
  going_on = dict.fromkeys(place[x.prompt_id] for x in continued)
  weights = np.ones(len(pool))
  if continued:  # The allocation is uniform, see windows.check.
    free = np.array([k for k in order if k not in going_on], np.int64)
    left = budget.responses - len(continued)
    counts = interface.fill(free, budget.samples, left, len(pool))
  else:
    memory = _memory(job, allocator, state)
    counts = allocator.propose(memory, budget, np.array(order))
    weights = allocator.loss_weights(memory, budget, np.array(order))
  chosen = [*going_on, *(k for k in order if counts[k])]
  made = Plan(
      [pool[k] for k in chosen],
      [int(counts[k]) for k in chosen],
      continued,
      [float(weights[k]) for k in chosen] if allocator.weighs else (),
  )
  if jax.process_index() == 0:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(
        path,
        {
            "round": number,
            "prompt_ids": [prompt.prompt_id for prompt in made.prompts],
            "counts": made.counts,
            "continued": [rollout.record_id for rollout in continued],
            "weights": made.weights,
        },
    )
  return made


def leave_out(state: TrainState, workdir: pathlib.Path) -> TrainState:
  """Passes a round that generates nothing; returns the state at the next."""
  number = state.position.round
  print(f"round {number}: the allocation leaves it out")
  path = feedback.path_of(workdir, number)
  hosts.first_alone(lambda: feedback.write_groups(path, number, []))
  return dataclasses.replace(
      state, position=state.position.next_round(state.updates)
  )


def next_plan(
    job: parts.Job, state: TrainState, workdir: pathlib.Path
) -> tuple[TrainState, Plan]:
  """Passes rounds that generate nothing; returns the next that does.

  Raises:
    ValueError: there is none within as many rounds as the run has.
  """
  for _ in range(job.config.run.rounds + 1):
    state = informed(job, state, workdir)
    made = plan(job, state, workdir)
    if made.counts:
      return state, made
    state = leave_out(state, workdir)
  raise ValueError(
      f"allocation: {job.config.run.rounds} rounds in a row were left out, the"
      " budget is spent; begin another --workdir to generate more."
  )


def pass_empty(state: TrainState, workdir: pathlib.Path) -> TrainState:
  """Passes rounds that were planned to generate nothing."""
  while (path := folders.round_plan(workdir, state.position.round)).is_file():
    if _content(path)["counts"]:
      break
    state = leave_out(state, workdir)
  return state


def _pool(job: parts.Job) -> list[prompts_lib.Prompt]:
  """All training prompts in an order that depends on the seed alone."""
  return rounds.turn_of(job.train_prompts, 0, 1, job.config.seed)


def _memory(
    job: parts.Job, allocator: interface.Allocator, state: TrainState
) -> interface.State:
  """Returns the allocator's state, its first one where none was saved."""
  if state.allocation is not None:
    return interface.from_json(allocator.state, state.allocation)
  return allocator.start(
      len(job.train_prompts), parts.budget(job.config), job.config.seed
  )


def _content(path: pathlib.Path) -> dict[str, Any]:
  """Reads the JSON of a plan."""
  return atomic.read_json(
      path,
      ("counts", "prompt_ids", "continued", "weights"),
      "restore it, or delete it together with the shards of its round",
  )


def _read(
    path: pathlib.Path, job: parts.Job, continued: Sequence[types.Rollout]
) -> Plan:
  """Reads a plan that was written before."""
  content = _content(path)
  known = {prompt.prompt_id: prompt for prompt in job.train_prompts}
  missing = set(content["prompt_ids"]) - set(known)
  if missing:
    raise ValueError(
        f"{path}: expected training prompts, found {len(missing)} others; give"
        " the run the prompts that it began with, or another --workdir."
    )
  if content["continued"] != [rollout.record_id for rollout in continued]:
    raise ValueError(
        f"{path}: expected {len(content['continued'])} unfinished responses"
        f" that go on, found {len(continued)} others in the round before;"
        " restore its shards, or begin another --workdir."
    )
  return Plan(
      [known[prompt_id] for prompt_id in content["prompt_ids"]],
      content["counts"],
      continued,
      content["weights"],
  )
