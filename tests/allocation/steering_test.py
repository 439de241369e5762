"""The allocation steers what is generated, in the tiny main job."""

import dataclasses
import pathlib

import graded
import numpy as np
import pytest

from configs import tiny
from jaxrl_llm import __main__ as door
from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import registry
from jaxrl_llm.data import shards
from jaxrl_llm.training import feedback
from jaxrl_llm.training import rounds as rounds_lib
from jaxrl_llm.verbs import allocation
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import generate
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import rounds
from jaxrl_llm.verbs import train

ROOT = pathlib.Path(__file__).parents[2]
ROUNDS = 3


def small_config():
  config = tiny.get_config()
  config.prompts.count = 16
  config.prompts.eval_count = 1
  config.generation.samples_per_prompt = 8
  config.generation.slots = 32
  config.run.rounds = ROUNDS
  return config


@pytest.fixture(scope="module")
def job() -> parts.Job:
  """A job whose pool is passed twice in four rounds."""
  made = parts.job(small_config())
  made.config.generation.prompts_per_round = len(made.train_prompts) // 2
  return dataclasses.replace(made, grader=graded.grader())


def posed_as(job: parts.Job, name: str) -> parts.Job:
  config = job.config.copy_and_resolve_references()
  config.allocation.name = name
  return dataclasses.replace(job, config=config)


def generated(workdir, number) -> list:
  folder = shards.open_folder(folders.host_folder(workdir, number, 0))
  return [folder[index] for index in range(len(folder))]


def feed_back(job, state, workdir) -> None:
  """Writes the feedback of a round as training does, without its updates."""
  number = state.position.round
  work = rounds_lib.open_round(
      [folders.host_folder(workdir, number, 0)],
      parts.spec(job.config),
      parts.train_settings(job.config),
      tokenizer_fingerprint=job.model.tokenizer.fingerprint,
      seed=job.config.seed,
      position=state.position,
      lineage=state.lineage,
      fingerprint=lambda: "",
  )
  sizes = dict.fromkeys(work.index.record_ids.tolist(), 1.0)
  path, known = feedback.path_of(workdir, number), feedback.outcomes(work)
  feedback.write(path, work, known, sizes, number)


def seen(records, ids) -> interface.Outcomes:
  """Counts a round from its records, apart from feedback."""
  counts = np.zeros((2, len(ids)), int)
  norms, sureness = [[] for _ in ids], [[] for _ in ids]
  rewards = [set() for _ in ids]
  for record in records:
    place = ids.index(record.prompt_id)
    counts[:, place] += 1, record.reward > 0
    rewards[place].add(record.reward)
    logprobs = record.behavior_logprobs.astype(float) + record.log_kept_mass
    sureness[place].append(logprobs.mean())
    if record.reward > 0:
      chosen = np.exp(record.behavior_logprobs + record.log_kept_mass)
      norms[place].append(np.linalg.norm(1 - chosen.astype(float)))
  means = np.array([np.mean(values) if values else 0.0 for values in norms])
  sure = np.array([np.exp(np.mean(v)) if v else 0.0 for v in sureness])
  # `feed_back` gives every trained record |A| = 1; equal rewards are dropped.
  sizes = np.array([float(len(found) > 1) for found in rewards])
  return interface.Outcomes(
      counts[0], counts[0], counts[1], means, sure, sizes
  )


@pytest.mark.parametrize("name", registry.REGISTRY)
def test_shards_hold_what_the_method_asks_for(job, name, tmp_path):
  """Each round holds the proposal that follows from the records before it."""
  job = posed_as(job, name)
  config, budget = job.config, parts.budget(job.config)
  allocator = parts.allocator(config)
  pool = rounds.turn_of(job.train_prompts, 0, 1, config.seed)
  ids = [prompt.prompt_id for prompt in pool]
  memory = allocator.start(len(ids), budget, config.seed)
  state = train.start(config, job.model, tmp_path)
  usual = []
  for number in range(ROUNDS):
    turn = rounds.turn_of(
        job.train_prompts, number, budget.prompts, config.seed
    )
    order = np.array([ids.index(prompt.prompt_id) for prompt in turn])
    wanted = allocator.propose(memory, budget, order)
    state = allocation.informed(job, state, tmp_path)
    plan = allocation.plan(job, state, tmp_path)
    generate.round_of(job, state, plan, tmp_path)
    found = seen(generated(tmp_path, number), ids)
    np.testing.assert_array_equal(found.samples, wanted)
    usual.append(
        set(np.flatnonzero(wanted)) == set(order[: budget.prompts])
        and set(wanted[wanted > 0]) == {budget.samples}
    )
    memory = allocator.observe(memory, found)
    feed_back(job, state, tmp_path)
    state = dataclasses.replace(
        state, position=state.position.next_round(state.updates)
    )
  assert all(usual) == (name == "uniform")


def test_a_plan_that_is_written_is_kept(job, tmp_path):
  """So a killed `generate` resumes to the same bytes."""
  job = posed_as(job, "spo")
  state = train.start(job.config, job.model, tmp_path)
  first = allocation.plan(job, state, tmp_path)
  other = dataclasses.replace(
      job, config=job.config.copy_and_resolve_references()
  )
  other.config.allocation.exploration = 9.0
  other.config.generation.samples_per_prompt = 3
  again = allocation.plan(other, state, tmp_path)
  assert [p.prompt_id for p in again.prompts] == [
      p.prompt_id for p in first.prompts
  ]
  assert list(again.counts) == list(first.counts)
  posed = {prompt.prompt_id for prompt in first.prompts}
  others = [p for p in job.train_prompts if p.prompt_id not in posed]
  with pytest.raises(ValueError, match="expected training prompts"):
    allocation.plan(
        dataclasses.replace(job, train_prompts=others), state, tmp_path
    )


def test_missing_feedback_is_named(job, tmp_path):
  job = posed_as(job, "cero")
  state = train.start(job.config, job.model, tmp_path)
  state = dataclasses.replace(state, position=state.position.next_round(0))
  with pytest.raises(ValueError, match="feedback/round_0000.json"):
    allocation.informed(job, state, tmp_path)


class TestRefusals:
  """One line that names the key, before the model is read."""

  @pytest.mark.parametrize(
      "keys, words",
      [
          (["name=cerro"], "allocation.name"),
          (["name=cero", "half_life=0.1"], "allocation.half_life"),
          (["name=gvm", "unit=1"], "allocation.unit"),
          (["name=knapsack", "min_samples=99"], "allocation.min_samples"),
          (["nam=cero"], "allocation.name"),
      ],
  )
  def test_key(self, keys, words, tmp_path, capsys):
    given = [f"--config.allocation.{key}" for key in keys]
    code = door.main([
        "run", f"--config={ROOT / 'configs/tiny.py'}", *given,
        f"--workdir={tmp_path}",
    ])
    text = capsys.readouterr().err
    assert code == door.USER_ERROR and words in text
    assert text.count("\n") == 1
