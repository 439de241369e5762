"""The verb report, and what `run` does with it."""

import json
import pathlib
import re
import shutil
import types

import numpy as np
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.lab import report as report_lib
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import metrics
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import recorded
from jaxrl_llm.verbs import report


@pytest.fixture
def trained(donor, tmp_path) -> pathlib.Path:
  """A working directory of `generate` and `train`: no evaluations."""
  return shutil.copytree(donor.parent, tmp_path / "trained")


def written(capsys, *arguments: object) -> str:
  """Calls the verb; returns the page."""
  assert door.main(["report", *map(str, arguments)]) == 0
  line = capsys.readouterr().out.strip().splitlines()[-1]
  return pathlib.Path(line.removeprefix("report: ")).read_text("utf-8")


def absent(page: str) -> list[str]:
  return re.findall(r'<p class="missing">(.*?)</p>', page)


def shown(page: str) -> list[float]:
  """Returns the ratio of each token of the samples, in nats."""
  return [float(nats) for nats in re.findall(r"\(([-+.\de]+) nats\)", page)]


def test_a_trained_run_is_judged_by_its_checkpoint(trained, capsys):
  page = written(capsys, f"--workdir={trained}", "--config.report.samples=3")
  assert page.count('<article class="sample">') == 3
  updates = checkpoints.latest(trained / "checkpoints").name[len("step_"):]
  assert f"Coloured by live / proximal after update {updates}" in page
  assert any(nats != 0 for nats in shown(page)) and " cut;" in page
  assert "no finished evaluation" in page
  records = metrics.read(trained / "metrics.jsonl")
  assert f"as of update {records[-1]['step']}." in page


def test_without_its_checkpoint_what_is_recorded_is_shown(trained, capsys):
  shutil.rmtree(trained / "checkpoints")
  page = written(capsys, f"--workdir={trained}", "--config.report.samples=3")
  assert "Coloured by proximal / behavior" in page
  assert any("There is no checkpoint" in line for line in absent(page))
  # The start policy drew the round: sampler and trainer agree.
  np.testing.assert_allclose(shown(page), 0, atol=1e-2)
  assert page.count('<article class="sample">') == 3 and " cut;" not in page


def test_damaged_checkpoint_is_said(trained, capsys):
  path = checkpoints.latest(trained / "checkpoints")
  shutil.rmtree(path / "params" / "d")
  (path / "params" / "manifest.ocdbt").write_text("")
  page = written(capsys, f"--workdir={trained}", "--config.report.samples=2")
  assert any(path.name in line for line in absent(page))
  assert "Coloured by proximal / behavior" in page


def test_generated_and_never_trained(trained, capsys):
  for name in ("prepared", "checkpoints", "feedback"):
    shutil.rmtree(trained / name)
  (trained / "metrics.jsonl").unlink()
  page = written(capsys, f"--workdir={trained}", "--config.report.samples=2")
  assert page.count('<article class="sample">') == 2
  assert any("not trained on" in line for line in absent(page))
  assert any("none was trained on" in line for line in absent(page))


def test_no_samples_read_no_model(trained, capsys, monkeypatch):
  monkeypatch.setattr(parts, "model", None)
  page = written(capsys, f"--workdir={trained}", "--config.report.samples=0")
  assert "report.samples=0" in page and "<article" not in page


def test_several_runs_are_named_by_what_tells_them_apart(
    trained, tmp_path, capsys
):
  other = tmp_path / "other/trained"
  other.mkdir(parents=True)
  page = written(
      capsys, f"--workdir={tmp_path / 'both'}", "--config.report.samples=1",
      f"--config.report.workdirs={trained},{other}",
  )
  assert "<title>Report: trained, other/trained</title>" in page
  assert any(line.startswith("other/trained: ") for line in absent(page))
  assert not (trained / "report.html").exists()
  assert (tmp_path / "both/report/clip.png").is_file()


@pytest.mark.parametrize(
    "words,expected",
    [
        (["--workdir={}/none"], "no such working directory"),
        (["--workdir={}", "--config.report.workdirs={}/x"], "/x: there is no"),
        (["--workdir={}", "--config.report.samples=-1"], "report.samples"),
        ([], "--workdir"),
    ],
)
def test_mistakes_are_one_line(words, expected, tmp_path, capsys):
  words = [word.format(tmp_path) for word in words]
  assert door.main(["report", *words]) == door.USER_ERROR
  assert expected in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_other_things_of_a_report_s_names_are_not_touched(tmp_path, capsys):
  (tmp_path / "report").write_text("mine")
  assert door.main(["report", f"--workdir={tmp_path}"]) == door.USER_ERROR
  assert "expected a folder for the pictures" in capsys.readouterr().err
  assert (tmp_path / "report").read_text() == "mine"
  (tmp_path / "report").unlink()
  (tmp_path / "report.html").mkdir()
  assert door.main(["report", f"--workdir={tmp_path}"]) == door.USER_ERROR
  assert "found a folder; move it away" in capsys.readouterr().err
  assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_recorded_keys_win_and_unknown_ones_are_refused():
  config, _ = flags.parse("report", [])
  restored = recorded.restore(
      config, {"seed": 5, "generation.prompt_buckets": [8, 16],
               "curation.reweight": None, "objective.clip_low": 0.5},
  )
  assert restored.seed == 5 and config.seed == 0
  assert restored.generation.prompt_buckets == (8, 16)
  assert restored.objective.clip_low == 0.5
  assert restored.train.epochs == config.train.epochs
  with pytest.raises(ValueError, match="train.epochs"):
    recorded.restore(config, {"train.epoch": 3})


def test_what_goes_wrong_within_a_run_is_one_line(
    trained, capsys, monkeypatch
):
  def fail(*unused):
    raise RuntimeError("the font\nis gone")

  monkeypatch.setattr(report_lib, "write", fail)
  config = recorded.restore(
      flags.parse("report", [])[0],
      json.loads((trained / "config.json").read_text()),
  )
  config.report.samples = 0
  tokenizer = parts.tokenizer(config)
  job = types.SimpleNamespace(
      config=config, model=types.SimpleNamespace(tokenizer=tokenizer)
  )
  report.refresh(job, None, trained)
  (line,) = capsys.readouterr().out.strip().splitlines()
  assert "RuntimeError: the font is gone" in line
  assert "report --workdir=" in line
