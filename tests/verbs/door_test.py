"""The command line: help, errors, and the keys it knows."""

import dataclasses
import errno
import json
import pathlib
import resource
import subprocess
import sys

import pytest
import tiny_run

from configs import base
from jaxrl_llm import __main__ as door
from jaxrl_llm.verbs import critics
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import keys
from jaxrl_llm.verbs import manual
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import recorded

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted(ROOT.glob("configs/**/*.py"))


def call(capsys, *arguments: str) -> tuple[int, str]:
  """Runs the door in this process; returns exit code and standard error."""
  code = door.main(list(arguments))
  return code, capsys.readouterr().err


def test_help_comes_within_a_second_and_without_jax():
  program = (
      "import sys\n"
      "from jaxrl_llm import __main__ as door\n"
      "assert door.main(sys.argv[1:]) == 0\n"
      "heavy = {'jax', 'flax', 'numpy', 'ml_collections'} & set(sys.modules)\n"
      "assert not heavy, heavy\n"
  )
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  subprocess.run(
      [sys.executable, "-c", program, "run", "--help"],
      cwd=ROOT, check=True, capture_output=True,
  )
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  # Processor time: what the wall clock shows on an idle machine.
  spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  assert spent < 1.0


@pytest.mark.parametrize("verb", manual.VERBS)
def test_help_says_what_a_verb_does_and_lists_its_keys(verb, capsys):
  assert door.main([verb, "--help"]) == 0
  shown = capsys.readouterr().out
  listed = {
      line.strip().partition("=")[0].removeprefix("--config.")
      for line in shown.splitlines()
      if line.startswith("  --config.")
  }
  names = {key.name for key in keys.read()}
  sections = manual.sections(verb)
  assert listed == {name for name in names if keys.within(name, sections)}
  assert all(
      any(keys.within(name, [section]) for name in names)
      for section in sections
  )
  assert max(map(len, shown.splitlines())) <= 100


def test_no_verb_lists_the_verbs(capsys):
  assert door.main([]) == 0
  shown = capsys.readouterr().out
  assert all(f"\n  {verb} " in shown for verb in manual.VERBS)


def test_keys_read_from_comments_are_the_keys_of_base():
  found = keys.flatten(base.get_config().to_dict())
  assert sorted(key.name for key in keys.read()) == sorted(found)
  assert [key.name for key in keys.read() if not key.comment] == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_files_open_with_command_and_keep_to_the_keys(path):
  config, workdir = flags.parse("run", [f"--config={path}", "--workdir=w"])
  assert workdir == pathlib.Path("w").absolute()
  assert keys.flatten(config.to_dict()).keys() == {k.name for k in keys.read()}
  opening = path.read_text().split('"""')[1]
  if path.stem != "base":
    assert "Command:" in opening and "Hardware:" in opening


TINY = f"--config={ROOT / 'configs/tiny.py'}"
MISTAKES = {
    "verb": (["trian"], "'train'"),
    "key": (["run", TINY, "--config.train.lerning_rate=1"],
            "'train.learning_rate'"),
    "section": (["run", TINY, "--config.trian.epochs=1"], "'train.epochs'"),
    "no section": (["run", TINY, "--config.epochs=1"], "'train.epochs'"),
    "type": (["run", "--config.train.epochs=two", TINY], "'two'"),
    "flag": (["run", TINY, "--wrkdir=x"], "workdir"),
    "stray word": (["run", TINY, "workdir"], "'workdir'"),
    "no config": (["run"], "--config"),
    "no folder": (["train", TINY, f"--workdir={__file__}"], "door_test.py"),
    "no file": (["run", "--config=configs/none.py"], "configs/none.py"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_gives_one_line_that_names_the_remedy(name, capsys):
  arguments, expected = MISTAKES[name]
  code, text = call(capsys, *arguments)
  assert code == door.USER_ERROR
  assert expected in text
  assert text.count("\n") == 1 and "Traceback" not in text


def test_a_seed_of_more_bits_than_a_key_takes_is_named():
  config, _ = flags.parse("run", [TINY, f"--config.seed={2**63}"])
  with pytest.raises(ValueError, match="^seed: expected an integer of 64"):
    parts.model(config, None)


@pytest.mark.parametrize("verb", ["generate", "run", "train"])
def test_a_second_writer_is_kept_out(verb, tmp_path, capsys):
  with folders.alone(tmp_path):
    code, text = call(capsys, verb, TINY, f"--workdir={tmp_path}")
  assert code == door.USER_ERROR and "another command is writing" in text
  with folders.alone(tmp_path):
    pass


@pytest.mark.parametrize("verb", ["run", "score", "train"])
def test_a_critic_of_other_settings_is_refused(verb, tmp_path, capsys):
  arguments = [
      f"--config={ROOT / 'configs/curation_ippo.py'}",
      f"--workdir={tmp_path}",
  ]
  config, _ = flags.parse(verb, arguments)
  record.agree(config, ["critic"], tmp_path)
  tiny_run.write(folders.host_folder(tmp_path, 0, 0), tiny_run.make_rollouts())
  changed = "--config.critic.learning_rate=0.5"
  code, text = call(capsys, verb, *arguments, changed)
  assert code == door.USER_ERROR
  assert "critic.learning_rate (was None, now 0.5)" in text


def test_a_model_that_is_not_there_is_named_with_its_key():
  config, _ = flags.parse("run", [f"--config={ROOT / 'configs/ppo_gae.py'}"])
  config.critic.path = config.train.reference = "/no/model"
  with pytest.raises(FileNotFoundError, match="^critic.path: there is noth"):
    critics.build(config, None)
  with pytest.raises(FileNotFoundError, match="^train.reference: there is"):
    parts.reference(config, None)


@pytest.mark.parametrize("verb", ["run", "train"])
def test_a_reference_that_is_not_there_binds_nothing(verb, tmp_path, capsys):
  code, text = call(
      capsys, verb, f"--config={ROOT / 'configs/objectives/dpo.py'}",
      "--config.train.reference=/no/model", f"--workdir={tmp_path}",
  )
  assert code == door.USER_ERROR
  assert "train.reference: there is nothing at /no/model" in text
  assert not (tmp_path / recorded.FILE).exists()


def test_a_critic_must_read_as_far_as_the_policy_writes(tmp_path, monkeypatch):
  config, _ = flags.parse("run", [f"--config={ROOT / 'configs/ppo_gae.py'}"])
  config.critic.path = str(tmp_path)
  job = parts.job(config)
  longest = max(prompt.tokens.size for prompt in job.train_prompts)
  needed = longest + config.sampling.max_new_tokens
  own = job.model.policy

  def read(unused_path, unused_computing):
    return dataclasses.replace(
        own, config=dataclasses.replace(own.config, context_length=limit)
    )

  monkeypatch.setattr(critics, "_network", read)
  limit = needed
  critics.check(job)
  limit = needed - 1
  with pytest.raises(ValueError, match=f"context of the critic is {limit}"):
    critics.check(job)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
  """The tokenizer of the configuration is not that of the run."""
  for name in ("params/_METADATA", "optimizer/_METADATA", "meta/metadata"):
    path = tmp_path / "checkpoints" / "step_3" / name
    path.parent.mkdir(parents=True)
    path.touch()
  config, _ = flags.parse("run", [TINY])
  record.agree(config, ["model"], tmp_path)
  config.model.compute_dtype = "bfloat16"
  assert parts.checkpoint(config, tmp_path, "").name == "step_3"
  config.model.tokenizer = "other"
  with pytest.raises(ValueError, match="model.tokenizer .was '', now 'other'"):
    parts.checkpoint(config, tmp_path, "3")


def test_keys_may_come_before_the_file():
  for spelling in ([TINY], TINY.split("=")):
    config, _ = flags.parse("run", ["--config.train.epochs=7", *spelling])
    assert config.train.epochs == 7


def test_compile_takes_the_slice_by_a_short_flag():
  for spelling in (["--topology=v5p:2x2x2"], ["--topology", "v5p:2x2x2"]):
    config, _ = flags.parse("compile", [TINY, *spelling])
    assert config.compile.topology == "v5p:2x2x2"


@pytest.mark.parametrize("verb", sorted(set(manual.VERBS) - {"compile"}))
def test_no_other_verb_takes_the_slice(verb, capsys):
  code, text = call(capsys, verb, TINY, "--topology=v5e:2x2")
  assert code == door.USER_ERROR and text.count("\n") == 1
  for word in ("--topology", "compile", "--config.compile.topology"):
    assert word in text


def test_key_that_a_config_file_invents_is_named(tmp_path, capsys):
  path = tmp_path / "mine.py"
  path.write_text(
      "from configs import base\n"
      "def get_config():\n"
      "  config = base.get_config()\n"
      "  config.train.lerning_rate = 1.0\n"
      "  return config\n"
  )
  code, text = call(capsys, "run", f"--config={path}")
  assert code == door.USER_ERROR
  assert "'train.lerning_rate'" in text and "'train.learning_rate'" in text


def raised(function) -> Exception:
  """Returns what a call raises."""
  with pytest.raises(Exception) as caught:
    function()
  return caught.value


def test_only_worded_errors_lose_their_traceback():
  ours = raised(lambda: keys.check(["a"], ["b"], "here"))
  assert door.is_user_error(ours)
  assert door.is_user_error(raised(lambda: open("/no/such/file")))
  assert door.is_user_error(OSError(errno.ENOSPC, "No space left on device"))
  assert door.is_user_error(PermissionError(errno.EACCES, "Permission denied"))
  # Inside the package, but out of an operation that failed.
  failed = raised(lambda: keys.read(b"\0"))
  assert not door.is_user_error(failed)
  assert not door.is_user_error(raised(lambda: int("x")))
  assert not door.is_user_error(raised(lambda: {}["x"]))


def test_debug_shows_the_traceback():
  with pytest.raises(ValueError, match="nearest"):
    door.main(["trian", "--debug"])


class TestRecord:

  def test_same_configuration_agrees_and_more_rounds_do(self, tmp_path):
    config = base.get_config()
    sections = ("train", "run", "mesh", "generation")
    record.agree(config, sections, tmp_path)
    config.run.rounds += 1
    config.mesh = "fsdp=2"  # Where weights lie changes no file.
    config.generation.spread_weights = True
    record.agree(config, sections, tmp_path)
    stored = json.loads((tmp_path / recorded.FILE).read_text())
    assert stored["run.rounds"] == config.run.rounds
    assert "model.path" not in stored

  def test_other_configuration_names_the_keys(self, tmp_path):
    config = base.get_config()
    record.agree(config, ("train",), tmp_path)
    before = (tmp_path / recorded.FILE).read_bytes()
    config.train.epochs = 7
    config.model.preset = "other"
    with pytest.raises(ValueError, match=r"train\.epochs \(was 2, now 7\)"):
      record.agree(config, ("train", "model"), tmp_path)
    assert (tmp_path / recorded.FILE).read_bytes() == before

  def test_sections_that_no_verb_recorded_are_free(self, tmp_path):
    config = base.get_config()
    record.agree(config, ("generation",), tmp_path)
    config.train.epochs = 7
    record.agree(config, ("generation", "train"), tmp_path)


def test_a_program_starts_anew_with_huge_pages_once(monkeypatch):
  started = []
  monkeypatch.setattr(door.sys, "platform", "linux")
  monkeypatch.setattr(door.os, "execv", lambda *words: started.append(words))
  monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")
  door._take_huge_pages()
  assert started == [(sys.executable, sys.orig_argv)]
  expected = "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"
  assert door.os.environ["GLIBC_TUNABLES"] == expected
  door._take_huge_pages()
  assert len(started) == 1
  monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
  door._take_huge_pages()
  assert len(started) == 1
