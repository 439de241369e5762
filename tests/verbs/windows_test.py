"""The verbs with generation.window: rounds that go on, killed and resumed."""

import contextlib
import io
import json
import pathlib
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.data import shards
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import feedback
from jaxrl_llm.training import loop
from jaxrl_llm.training import metrics
from jaxrl_llm.verbs import allocation
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import generate
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import windows

ROOT = pathlib.Path(__file__).parents[2]
BUDGET, SAMPLES, LIMIT, WINDOW = 18, 3, 6, 2
ROUNDS = 4
SMALL = (
    f"--config={ROOT / 'configs/tiny.py'}",
    "--config.prompts.count=64",
    "--config.prompts.eval_count=1",
    "--config.evaluation.samples=1",
    "--config.evaluation.pass_at=1",
    f"--config.sampling.max_new_tokens={LIMIT}",
    f"--config.generation.prompts_per_round={BUDGET // SAMPLES}",
    f"--config.generation.samples_per_prompt={SAMPLES}",
    "--config.generation.slots=16",
    "--config.generation.records_per_shard=8",
    f"--config.generation.window={WINDOW}",
    "--config.train.checkpoint_every=1",
    "--config.train.groups_per_minibatch=4",
)
ALONE = (
    "--config.objective.advantage=gae", "--config.objective.correction=none"
)


@pytest.fixture
def stopping(monkeypatch):
  """Lets more ids end a response: about one token in eight."""
  plain = parts.tokenizer

  def of(config):
    made = plain(config)
    made.stop_ids = tuple(sorted({*made.stop_ids, *range(30, 63)}))
    return made

  monkeypatch.setattr(parts, "tokenizer", of)


def call(verb, workdir, *arguments, total=ROUNDS):
  return door.main([
      verb, *SMALL, *ALONE, f"--config.run.rounds={total}", *arguments,
      f"--workdir={workdir}",
  ])


def records(workdir, number):
  folder = shards.open_folder(folders.host_folder(workdir, number, 0))
  return [folder[place] for place in range(len(folder))]


def name_of(record):
  return record.prompt_id, record.sample_index


def left_behind(workdir):
  """Plans, shards, and the parameters' checkpoint by number of updates."""
  found = {
      str(path.relative_to(workdir)): path.read_bytes()
      for folder in ("allocation", "feedback", "rollouts")
      for path in sorted((workdir / folder).rglob("*"))
      if path.is_file()
  }
  return found | {"at": checkpoints.latest(workdir / "checkpoints").name}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A run that nothing interrupted, and what it printed."""
  workdir = tmp_path_factory.mktemp("whole")
  with pytest.MonkeyPatch.context() as patch:
    stopping.__wrapped__(patch)
    with contextlib.redirect_stdout(io.StringIO()) as output:
      assert call("run", workdir) == 0
  return workdir, output.getvalue()


def test_rounds_go_on_with_what_is_unfinished_and_fill_up(whole):
  workdir, output = whole
  before, kinds = {}, set()
  for number in range(ROUNDS):
    found = records(workdir, number)
    assert len(found) == BUDGET
    going_on = {name_of(x): x for x in found if x.window_start}
    assert set(going_on) == set(before)
    busy = {prompt for prompt, _ in before}
    fresh = [x for x in found if not x.window_start]
    assert not busy & {x.prompt_id for x in fresh}
    for name, record in going_on.items():
      old = before[name]
      assert record.window_start == len(old.response_tokens)
      np.testing.assert_array_equal(
          record.policy_versions[: record.window_start], old.policy_versions
      )
      np.testing.assert_array_equal(
          record.behavior_logprobs[: record.window_start],
          old.behavior_logprobs,
      )
      versions = set(record.policy_versions[record.window_start :].tolist())
      assert len(versions) == 1 and versions.pop() > max(old.policy_versions)
    counts = [x.sample_index for x in fresh]
    partial = len(fresh) % SAMPLES
    assert sum(j == 0 for j in counts) == -(-len(fresh) // SAMPLES)
    kinds.add((bool(going_on), bool(fresh), bool(partial)))
    before = {name_of(x): x for x in found if x.unfinished}
    assert f"round {number}: {BUDGET} responses" in output
    if going_on:
      assert f"; continued {len(going_on)}; " in output
  # The first round, and one with both kinds and a part of a group.
  assert {(False, True, False), (True, True, True)} <= kinds
  assert f"unfinished: {len(before)} responses of the last round" in output


def test_metrics_count_them(whole):
  workdir, _ = whole
  batches = [
      x for x in metrics.read(workdir / "metrics.jsonl") if x["kind"] == "batch"
  ]
  assert len(batches) == ROUNDS
  ended = 0
  for number, batch in enumerate(batches):
    found = records(workdir, number)
    assert batch["unfinished"] == sum(x.unfinished for x in found) > 0
    assert batch["continued"] == sum(x.window_start > 0 for x in found)
    scored = [x.reward for x in found if not x.unfinished]
    assert batch["reward"] == (np.mean(scored) if scored else None)
    ended += len(scored)
    groups = feedback.read(feedback.path_of(workdir, number))
    assert sum(group["samples"] for group in groups) == BUDGET
    assert sum(group["scored"] for group in groups) == len(scored)
    assert batch["records"] == BUDGET  # Unfinished ones are trained on.
  assert ended


def strike(patch, module, name, count):
  """Interrupts the process after a function's `count`-th return."""
  real, calls = getattr(module, name), []

  def struck(*arguments, **named):
    result = real(*arguments, **named)
    calls.append(name)
    if len(calls) == count:
      raise KeyboardInterrupt
    return result

  patch.setattr(module, name, struck)


def test_a_killed_run_resumes_to_the_same_bytes(
    whole, tmp_path, monkeypatch, stopping
):
  # Inside a shard folder, between generation and training, inside training.
  for module, name, count in (
      (shards.ShardWriter, "write", 4),
      (generate, "round_of", 1),
      (checkpoints, "save", 2),
      (shards.ShardWriter, "write", 2),
      (loop, "train", 1),
  ):
    with monkeypatch.context() as patch:
      strike(patch, module, name, count)
      assert call("run", tmp_path) == 130
  assert call("run", tmp_path) == 0
  assert left_behind(tmp_path) == left_behind(whole[0])


def test_more_rounds_go_on_with_the_last(
    whole, tmp_path, stopping
):
  shutil.copytree(whole[0], tmp_path / "more")
  left = {name_of(x) for x in records(whole[0], ROUNDS - 1) if x.unfinished}
  assert call("run", tmp_path / "more", total=ROUNDS + 1) == 0
  found = records(tmp_path / "more", ROUNDS)
  assert {name_of(x) for x in found if x.window_start} == left


def test_a_missing_round_before_is_one_clear_line(
    whole, tmp_path, capsys, stopping
):
  workdir = tmp_path / "copy"
  shutil.copytree(whole[0], workdir)
  shutil.rmtree(folders.round_folder(workdir, ROUNDS - 1))
  assert call("generate", workdir) == door.USER_ERROR
  lines = [x for x in capsys.readouterr().err.splitlines() if "error:" in x]
  assert len(lines) == 1
  assert "round_00003/host_000: expected finished shards, whose unf" in lines[0]
  assert "go on in round 4, found none" in lines[0]


def test_other_responses_than_the_plan_was_made_for_are_refused(
    whole, tmp_path, capsys, stopping
):
  workdir = tmp_path / "copy"
  shutil.copytree(whole[0], workdir)
  assert call("generate", workdir) == 0
  path = folders.round_plan(workdir, ROUNDS)
  content = json.loads(path.read_text())
  assert content["continued"]
  path.write_text(json.dumps(content | {"continued": content["continued"][1:]}))
  assert call("generate", workdir) == door.USER_ERROR
  assert "others in the round before" in capsys.readouterr().err


def test_where_few_problems_are_free_a_round_is_smaller(whole, tmp_path):
  workdir = tmp_path / "copy"
  shutil.copytree(whole[0], workdir)
  config, _ = flags.parse("run", [*SMALL, *ALONE])
  going_on = [x for x in records(workdir, ROUNDS - 1) if x.unfinished]
  busy = {x.prompt_id for x in going_on}
  pool, _ = parts.prompts(config, parts.tokenizer(config))
  free = [x for x in pool if x.prompt_id not in busy]
  free = free[: BUDGET // SAMPLES - len(busy)]
  assert 0 < len(free) * SAMPLES < BUDGET - len(going_on)
  job = SimpleNamespace(
      config=config,
      train_prompts=free + [x for x in pool if x.prompt_id in busy],
  )
  position = SimpleNamespace(round=ROUNDS)
  state = SimpleNamespace(position=position, allocation=None)
  plan = allocation.plan(job, state, workdir)
  assert len(plan.continued) == len(going_on)
  posed = dict(zip([x.prompt_id for x in plan.prompts], plan.counts))
  assert posed == dict.fromkeys(busy, 0) | {
      x.prompt_id: SAMPLES for x in free
  }
  again = allocation.plan(job, state, workdir)  # From the file.
  assert (again.prompts, again.counts) == (plan.prompts, plan.counts)


def test_where_all_go_on_no_prompt_is_posed(tmp_path):
  """The plain tokenizer ends next to no response; windows of one token."""
  window = "--config.generation.window=1"
  workdir = tmp_path
  for _ in range(2):
    assert call("generate", workdir, window) == 0
    assert call("train", workdir, window) == 0
  first, second = records(workdir, 0), records(workdir, 1)
  assert all(x.unfinished for x in first)
  assert {name_of(x) for x in first} == {name_of(x) for x in second}
  assert all(x.window_start == 1 for x in second)
  found = metrics.read(workdir / "metrics.jsonl")
  assert [x["reward"] for x in found if x["kind"] == "batch"] == [None] * 2


@pytest.mark.parametrize("verb", ["run", "generate", "train"])
def test_an_objective_that_needs_rewards_is_refused_at_once(
    tmp_path, capsys, monkeypatch, verb
):
  monkeypatch.delattr("jaxrl_llm.verbs.parts.model")
  group = "--config.objective.advantage=group_std"
  assert call(verb, tmp_path, group) == door.USER_ERROR
  text = capsys.readouterr().err
  assert "error: generation.window: found 2, but ctpo needs the rew" in text
  assert text.count("\n") == 1


@pytest.mark.parametrize(
    "change, reason",
    [
        ("allocation.name=dapo", "allocation.name=dapo learns from whole"),
        ("curation.name=codapo", "curation.name=codapo counts solved"),
    ],
)
def test_what_reads_rewards_of_whole_responses_is_refused(change, reason):
  config, _ = flags.parse("run", [*SMALL, *ALONE, f"--config.{change}"])
  with pytest.raises(ValueError, match=reason):
    windows.check(config)


def test_a_window_as_long_as_a_response_asks_for_nothing():
  for window in (0, LIMIT, LIMIT + 1):
    words = [*SMALL, f"--config.generation.window={window}"]
    config, _ = flags.parse("run", words)
    windows.check(config)
    assert not windows.unfinished(config, pathlib.Path("nowhere"), 3)


def test_frozen_shards_with_unfinished_responses_are_refused(
    whole, tmp_path, capsys, stopping
):
  folder = folders.round_folder(whole[0], 0)
  assert call(
      "train", tmp_path, "--config.generation.window=0",
      "--config.objective.advantage=group_std",
      f"--config.train.rollouts={folder}",
  ) == door.USER_ERROR
  assert f"of {BUDGET} responses are unfinished" in capsys.readouterr().err
