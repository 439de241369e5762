"""Verbs that go on with a working directory read its configuration."""

import pathlib

import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import keys
from jaxrl_llm.verbs import manual
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import run

ROOT = pathlib.Path(__file__).parents[2]
QUICK = f"--config={ROOT / 'configs/quickstart.py'}"


@pytest.fixture(name="workdir")
def _workdir(tmp_path):
  config, _ = flags.parse("run", [QUICK, "--config.seed=3"])
  record.agree(config, run.SECTIONS, tmp_path)
  return tmp_path


def _read(verb, *arguments):
  config, _ = flags.parse(verb, list(arguments))
  return record.select(config, manual.sections(verb))


@pytest.mark.parametrize("verb", flags.RESUMED)
def test_without_config_the_recorded_one_is_read(verb, workdir):
  """quickstart.py's model and buckets, and the seed of the command line."""
  found = _read(verb, f"--workdir={workdir}")
  assert found == _read(verb, QUICK, "--config.seed=3")
  assert found["seed"] == 3 and "SmolLM2" in found["model.path"]


@pytest.mark.parametrize("verb", flags.RESUMED)
def test_a_named_key_or_a_config_comes_before_it(verb, workdir):
  place = f"--workdir={workdir}"
  assert _read(verb, place, "--config.model.path=x")["model.path"] == "x"
  assert _read(verb, place, "--config.model.path=x")["seed"] == 3
  assert _read(verb, place, QUICK)["seed"] == 0


def test_sections_that_a_verb_does_not_read_stay_out_of_it(workdir):
  config, _ = flags.parse("export", [f"--workdir={workdir}"])
  base, _ = flags.parse("export", [f"--config={keys.BASE_FILE}"])
  assert config.train.to_dict() == base.train.to_dict()


def _error(capsys, *arguments):
  assert door.main(list(arguments)) == door.USER_ERROR
  text = capsys.readouterr().err
  assert text.count("\n") == 1
  return text


def test_what_is_not_recorded_is_not_guessed(tmp_path, capsys):
  """A working directory that only trained says nothing of prompts."""
  config, _ = flags.parse("run", [QUICK])
  record.agree(config, ("seed", "model", "train"), tmp_path)
  place = f"--workdir={tmp_path}"
  text = _error(capsys, "evaluate", place)
  assert "config.json: expected the key " in text and "not recorded" in text
  assert "--config=FILE" in text
  assert _read("export", place)["model.path"] == config.model.path


@pytest.mark.parametrize("verb", flags.RESUMED)
def test_nothing_to_read_names_both_remedies(verb, tmp_path, capsys):
  for place in ([], [f"--workdir={tmp_path}"]):
    text = _error(capsys, verb, *place)
    assert "config.json" in text
    assert "--workdir" in text and "--config=FILE" in text
