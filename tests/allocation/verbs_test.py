"""The verbs under an allocation: killed, resumed, and with an empty round."""

import json
import pathlib

import graded
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.data import shards
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import feedback
from jaxrl_llm.training import loop
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts

ROOT = pathlib.Path(__file__).parents[2]


class TestRun:
  """CERO in the `run` verb; its first round is left out.

  A first price of 1 is above every prompt's, so nothing is served until the
  price has come down.
  """

  ARGUMENTS = (
      f"--config={ROOT / 'configs/tiny.py'}",
      "--config.prompts.count=16",
      "--config.prompts.eval_count=1",
      "--config.evaluation.samples=1",
      "--config.evaluation.pass_at=1",
      "--config.generation.prompts_per_round=4",
      "--config.generation.samples_per_prompt=8",
      "--config.generation.slots=32",
      "--config.train.checkpoint_every=1",
      "--config.train.groups_per_minibatch=2",
      "--config.allocation.name=cero",
      "--config.allocation.budget_price=1.0",
      "--config.run.rounds=4",
  )

  @pytest.fixture(autouse=True)
  def graded_by_difficulty(self, monkeypatch):
    monkeypatch.setattr(parts, "grader", graded.grader)

  def call(self, verb, workdir) -> int:
    return door.main([verb, *self.ARGUMENTS, f"--workdir={workdir}"])

  def left_behind(self, workdir) -> dict:
    """Plans, shards, feedback and the state in the last checkpoint."""
    found = {
        str(path.relative_to(workdir)): path.read_bytes()
        for folder in ("allocation", "feedback", "rollouts")
        for path in sorted((workdir / folder).rglob("*"))
        if path.is_file()
    }
    path = checkpoints.latest(workdir / "checkpoints")
    meta = json.loads((path / "meta/metadata").read_text())
    return found | {"state": meta["allocation"], "at": meta["position"]}

  def records(self, workdir, number) -> int:
    return len(shards.open_folder(folders.host_folder(workdir, number, 0)))

  def test_killed_run_resumes_to_the_same_proposals(
      self, tmp_path, monkeypatch, capsys
  ):
    assert self.call("run", tmp_path / "whole") == 0
    assert "round 0: the allocation leaves it out" in capsys.readouterr().out
    # After a round; within the next, at its first checkpoint; at the end.
    for module, name, count, inside in (
        (loop, "train", 1, False),
        (checkpoints, "save", 1, True),
        (loop, "train", 2, False),
    ):
      with monkeypatch.context() as patch:
        strike(patch, module, name, count)
        assert self.call("run", tmp_path / "killed") == 130
      at = self.left_behind(tmp_path / "killed")["at"]
      assert bool(at["epoch"] + at["minibatch"]) == inside
    assert self.call("run", tmp_path / "killed") == 0
    whole = self.left_behind(tmp_path / "whole")
    assert whole["state"]["rounds_seen"] == 3
    assert self.left_behind(tmp_path / "killed") == whole

  def test_generate_and_train_pass_the_empty_round_too(self, tmp_path):
    assert self.call("generate", tmp_path) == 0
    plans = sorted((tmp_path / "allocation").iterdir())
    counts = [json.loads(path.read_text())["counts"] for path in plans]
    assert counts == [[], [8] * 4]
    assert self.records(tmp_path, 1) == 32
    assert self.call("train", tmp_path) == 0
    assert (tmp_path / "feedback/round_0001.json").is_file()
    assert self.call("generate", tmp_path) == 0
    assert self.records(tmp_path, 2) > 0


  def test_reinforce_ada_trains_on_a_part_of_a_group(self, tmp_path):
    """Four of eight responses of each group that has both kinds."""
    arguments = [x for x in self.ARGUMENTS if ".allocation." not in x]
    arguments += [
        "--config.allocation.name=reinforce_ada",
        "--config.objective.name=dr_grpo", f"--workdir={tmp_path}",
    ]
    assert door.main(["generate", *arguments]) == 0
    assert door.main(["train", *arguments]) == 0
    groups = feedback.read(feedback.path_of(tmp_path, 0))
    assert {group["samples"] for group in groups} == {8}
    mixed = [g for g in groups if 0 < g["correct"] < g["scored"]]
    assert mixed and {group["trained"] for group in mixed} == {4}


def strike(patch, module, name: str, count: int) -> None:
  """Interrupts the process after a function's `count`-th return."""
  real, calls = getattr(module, name), []

  def struck(*arguments, **named):
    result = real(*arguments, **named)
    calls.append(name)
    if len(calls) == count:
      raise KeyboardInterrupt
    return result

  patch.setattr(module, name, struck)
