"""The whole job on the tiny model: kill, resume, and every verb after it."""

import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import metrics

ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
    f"--config={ROOT / 'configs/tiny.py'}",
    "--config.prompts.count=128",
    "--config.prompts.eval_count=8",
    "--config.run.rounds=2",
    "--config.train.checkpoint_every=2",
    "--config.train.keep_uniform_groups=True",
    "--config.evaluation.samples=2",
    "--config.evaluation.pass_at=1,2",
]
LIMIT = 600  # Seconds; only a busy machine needs more than a few.

def start(verb: str, workdir: pathlib.Path) -> subprocess.Popen:
  """Starts a verb in a process of its own."""
  return subprocess.Popen(
      [sys.executable, "-m", "jaxrl_llm", verb, *SMALL,
       f"--workdir={workdir}"],
      cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
  )


def finish(process: subprocess.Popen) -> str:
  """Waits for a process to succeed; returns what it printed."""
  output, _ = process.communicate(timeout=LIMIT)
  assert process.returncode == 0, output
  return output


def call(capsys, verb: str, *arguments: str) -> tuple[int, str]:
  """Runs a verb in this process; returns exit code and both outputs."""
  code = door.main([verb, *SMALL, *map(str, arguments)])
  captured = capsys.readouterr()
  return code, captured.out + captured.err


def shard_bytes(workdir: pathlib.Path) -> dict[str, bytes]:
  """Reads every file under rollouts/."""
  return {
      str(path.relative_to(workdir)): path.read_bytes()
      for path in sorted((workdir / "rollouts").rglob("*"))
      if path.is_file()
  }


def params_of(workdir: pathlib.Path) -> list[np.ndarray]:
  """Reads the parameters of the latest checkpoint."""
  policy = policy_lib.Policy(policy_lib.preset("tiny"))
  path = checkpoints.latest(workdir / "checkpoints")
  return jax.tree.leaves(checkpoints.restore_params(path, policy.shapes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[pathlib.Path, str]:
  """A run that was never interrupted, and what it printed."""
  workdir = tmp_path_factory.mktemp("run")
  return workdir, finish(start("run", workdir))


def test_run_ends_with_table_report_and_checkpoint(finished):
  workdir, output = finished
  for expected in ("before", "after round 2", "gain", "parsed", "exact match"):
    assert expected in output
  assert f"{workdir}/report.html" in output and "not written" not in output
  page = (workdir / "report.html").read_text(encoding="utf-8")
  updates = checkpoints.latest(workdir / "checkpoints").name[len("step_"):]
  assert f"live / proximal after update {updates}:" in page
  assert f"{workdir}/checkpoints/step_" in output
  records = metrics.read(workdir / "metrics.jsonl")
  updates = [record for record in records if record["kind"] == "update"]
  assert {record["round"] for record in updates} == {0, 1}
  assert any(record["grad_norm"] > 0 for record in updates)


def test_killed_run_resumes_to_the_same_bytes(finished, tmp_path):
  workdir, _ = finished
  moments = (
      lambda: any((tmp_path / "evaluations").glob("*/results.json")),
      lambda: any((tmp_path / "checkpoints").glob("step_*")),
      lambda: any((tmp_path / "rollouts/round_00001").glob("*/*_record-*")),
  )
  for reached in moments:
    process = start("run", tmp_path)
    deadline = time.monotonic() + LIMIT
    while not reached() and process.poll() is None:
      assert time.monotonic() < deadline
      time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
  finish(start("run", tmp_path))
  assert shard_bytes(tmp_path) == shard_bytes(workdir)
  initial = jax.tree.leaves(
      policy_lib.Policy(policy_lib.preset("tiny")).init(jax.random.key(0))
  )
  for resumed, whole, first in zip(
      params_of(tmp_path), params_of(workdir), initial, strict=True
  ):
    np.testing.assert_array_equal(resumed, whole)
    assert not np.array_equal(whole, first)
  evaluations = sorted(path.name for path in workdir.glob("evaluations/*"))
  for name in evaluations:
    problems = f"evaluations/{name}/problems.jsonl"
    assert (tmp_path / problems).read_bytes() == (
        workdir / problems
    ).read_bytes()


def test_more_recorded_ids_than_the_model_has(tmp_path, capsys):
  code, text = call(
      capsys, "generate", "--config.sampling.record_topk=273",
      f"--workdir={tmp_path}",
  )
  assert code == door.USER_ERROR
  assert "error: sampling.record_topk: expected at most the model's 272" in text


def test_rows_that_hold_no_prompt_are_refused_before_a_round(
    tmp_path, capsys
):
  code, text = call(
      capsys, "run", "--config.train.tokens_per_row=60",
      f"--workdir={tmp_path}",
  )
  assert code == door.USER_ERROR and "error: train.tokens_per_row: the" in text
  assert not any(tmp_path.glob("evaluations"))


def test_a_refused_command_does_not_bind_the_next(tmp_path, capsys):
  wrong = ("--config.prompts.source=jsonl", "--config.prompts.path=nowhere")
  code, text = call(capsys, "run", *wrong, f"--workdir={tmp_path}")
  assert code == door.USER_ERROR and "found nothing at 'nowhere'" in text
  assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize(
    "refused, changes",
    [
        (
            "sampling.record_topk",  # Sis reads the top 100 of its anchor.
            ["objective.name=sis", "objective.anchor=behavior",
             "sampling.record_topk=99"],
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_round(
    tmp_path, capsys, monkeypatch, refused, changes
):
  monkeypatch.delattr("jaxrl_llm.verbs.parts.job")
  flags = [f"--config.{change}" for change in changes]
  code, text = call(capsys, "run", *flags, f"--workdir={tmp_path}")
  assert code == door.USER_ERROR and f"error: {refused}: " in text


def test_a_curation_without_its_validation_set_is_refused_at_once(
    tmp_path, capsys
):
  code, text = call(
      capsys, "run", "--config.curation.name=ippo", f"--workdir={tmp_path}"
  )
  assert code == door.USER_ERROR
  assert "curation.validation_rollouts: sft has a validation set" in text
  assert not (tmp_path / "evaluations").exists()
  assert not (tmp_path / "config.json").exists()


def test_finished_run_only_shows_its_table(finished, capsys):
  workdir, output = finished
  before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.json*")}
  code, shown = call(capsys, "run", f"--workdir={workdir}")
  assert code == 0
  assert "after round 2" in shown and "Answering" not in shown
  assert before == {
      path: path.stat().st_mtime_ns for path in workdir.rglob("*.json*")
  }


def test_other_configuration_is_refused_by_key(finished, capsys):
  workdir, _ = finished
  code, text = call(
      capsys, "run", f"--workdir={workdir}", "--config.train.epochs=3"
  )
  assert code == door.USER_ERROR
  assert "train.epochs (was 2, now 3)" in text and text.count("\n") == 1


def test_verify_passes_and_finds_a_flipped_bit(finished, tmp_path, capsys):
  workdir, _ = finished
  code, text = call(capsys, "verify", f"--workdir={workdir}")
  assert code == 0 and "2 folders, 512 records read, 0 problems" in text
  shutil.copytree(workdir / "rollouts", tmp_path / "rollouts")
  shard = next(tmp_path.rglob("*_record-00000-*"))
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 1
  shard.write_bytes(content)
  assert door.main(["verify", f"--workdir={tmp_path}"]) == 1
  captured = capsys.readouterr()
  assert shard.name in captured.err and "generate" in captured.err


def test_evaluate_reads_what_the_run_measured(finished, capsys):
  workdir, _ = finished
  for chosen in ("", "model"):
    code, text = call(
        capsys, "evaluate", f"--workdir={workdir}",
        f"--config.evaluation.checkpoint={chosen}",
    )
    assert code == 0 and "exact match" in text and "Answering" not in text


def test_export_holds_the_checkpoint_to_the_bit(finished, tmp_path, capsys):
  workdir, _ = finished
  target = tmp_path / "exported"
  code, _ = call(
      capsys, "export", f"--workdir={workdir}",
      f"--config.export.folder={target}",
  )
  assert code == 0
  settings = policy_lib.ModelSettings(str(target), "", "", "float32", "none")
  _, params = policy_lib.load(target, settings)
  for exported, trained in zip(
      jax.tree.leaves(params), params_of(workdir), strict=True
  ):
    np.testing.assert_array_equal(exported, trained)
  own = tokenizer_lib.load(target)
  assert own.encode("3 + 4") == tokenizer_lib.load("bytes").encode("3 + 4")
  code, text = call(
      capsys, "export", f"--workdir={workdir}",
      f"--config.export.folder={target}",
  )
  assert code == door.USER_ERROR and str(target) in text


def test_frozen_rollouts_train_another_objective(finished, tmp_path, capsys):
  workdir, _ = finished
  arguments = (
      f"--workdir={tmp_path}", "--config.objective.name=grpo",
      f"--config.train.rollouts={workdir}/rollouts/round_00000",
  )
  code, text = call(capsys, "train", *arguments)
  assert code == 0 and f"{tmp_path}/checkpoints/step_" in text
  assert not (tmp_path / "rollouts").exists()
  assert "nothing to train on" not in text
  code, text = call(capsys, "train", *arguments)
  assert code == 0 and "nothing to train on: the latest checkpoint" in text


class TestErrors:
  """Each gives one line that names the thing and the remedy; exit code 2."""

  def refused(self, capsys, verb: str, *arguments: str) -> str:
    code, text = call(capsys, verb, *arguments)
    assert code == door.USER_ERROR, text
    lines = [line for line in text.splitlines() if "error:" in line]
    assert len(lines) == 1 and "Traceback" not in text
    return lines[0]

  def test_missing_model(self, tmp_path, capsys):
    line = self.refused(
        capsys, "run", f"--workdir={tmp_path}",
        "--config.model.path=no/such.gguf",
    )
    assert "no/such.gguf" in line

  def test_missing_prompts(self, tmp_path, capsys):
    line = self.refused(
        capsys, "run", f"--workdir={tmp_path}",
        "--config.prompts.source=jsonl", "--config.prompts.path=no/such.jsonl",
    )
    assert "no/such.jsonl" in line

  def test_empty_prompts(self, tmp_path, capsys):
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    line = self.refused(
        capsys, "run", f"--workdir={tmp_path / 'work'}",
        "--config.prompts.source=jsonl", f"--config.prompts.path={path}",
    )
    assert str(path) in line or "prompts" in line

  def test_prompt_beyond_the_context(self, tmp_path, capsys):
    line = self.refused(
        capsys, "run", f"--workdir={tmp_path}",
        "--config.sampling.max_new_tokens=100000",
    )
    assert "context" in line and "max_new_tokens" in line

  def test_prompt_beyond_the_limit(self, tmp_path, capsys):
    line = self.refused(
        capsys, "run", f"--workdir={tmp_path}",
        "--config.prompts.max_tokens=5",
    )
    assert "prompts.max_tokens" in line

  def test_group_of_one(self, tmp_path, capsys):
    line = self.refused(
        capsys, "run", f"--workdir={tmp_path}",
        "--config.generation.samples_per_prompt=1",
    )
    assert "generation.samples_per_prompt" in line

  def test_objective_key_of_another_part(self, tmp_path, capsys):
    line = self.refused(
        capsys, "run", f"--workdir={tmp_path}",
        "--config.objective.name=rloo", "--config.objective.budget_cap=3.0",
    )
    assert "objective.budget_cap" in line

  def test_shards_of_another_tokenizer(self, finished, tmp_path, capsys):
    workdir, _ = finished
    other = tmp_path / "tokenizer"
    tokenizer_lib.load("bytes").save(other)
    (other / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}!{% endfor %}"
    )
    line = self.refused(
        capsys, "train", f"--workdir={tmp_path / 'work'}",
        f"--config.model.tokenizer={other}",
        f"--config.train.rollouts={workdir}/rollouts/round_00000",
    )
    assert "tokenizer" in line and "round_00000" in line

  def test_shards_of_another_version(self, finished, tmp_path, capsys):
    workdir, _ = finished
    copied = tmp_path / "rollouts"
    shutil.copytree(workdir / "rollouts/round_00000", copied)
    path = next(copied.rglob("metadata.json"))
    path.write_text(
        path.read_text().replace('"schema_version": 1', '"schema_version": 99')
    )
    line = self.refused(
        capsys, "train", f"--workdir={tmp_path / 'work'}",
        f"--config.train.rollouts={copied}",
    )
    assert "schema version 1, found 99" in line
    assert "regenerate" in line

  def test_no_shards(self, tmp_path, capsys):
    line = self.refused(capsys, "train", f"--workdir={tmp_path}")
    assert str(tmp_path) in line and "generate" in line

  def test_no_checkpoint(self, tmp_path, capsys):
    line = self.refused(capsys, "export", f"--workdir={tmp_path}")
    assert "checkpoint" in line

  def test_no_workdir(self, capsys):
    assert "--workdir" in self.refused(capsys, "run")
