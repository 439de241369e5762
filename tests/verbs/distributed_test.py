"""Workers without coordination, and when processes join each other."""

import pathlib

import jax
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm import hosts
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.training import feedback
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.verbs import allocation
from jaxrl_llm.verbs import distributed
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts

ROOT = pathlib.Path(__file__).parents[2]
# A round of 5 groups of 4, a shard each.
SMALL = [
    f"--config={ROOT / 'configs/tiny.py'}",
    "--config.prompts.count=64",
    "--config.prompts.eval_count=4",
    "--config.generation.prompts_per_round=5",
    "--config.generation.samples_per_prompt=4",
    "--config.generation.records_per_shard=4",
    "--config.generation.slots=4",
    "--config.train.keep_uniform_groups=True",
]


def generate(workdir, *words):
  assert door.main(["generate", *SMALL, *words, f"--workdir={workdir}"]) == 0
  round_ = folders.round_folder(workdir, 0)
  return {
      path.name: [x.read_bytes() for x in sorted(path.glob("*.array_record-*"))]
      for path in sorted(round_.iterdir())
  }


def config_of(*words):
  return flags.parse("generate", [*SMALL, *words])[0]


def test_workers_write_what_one_would(tmp_path, capsys):
  whole = generate(tmp_path / "whole")["host_000"]
  assert len(whole) == 5
  workdir = tmp_path / "shared"
  generate(workdir, "--worker=1/2")
  capsys.readouterr()
  assert door.main(["train", *SMALL, f"--workdir={workdir}"]) == door.USER_ERROR
  assert "expected 2 finished folders, found 1; host_000" in (
      capsys.readouterr().err
  )
  parts = generate(workdir, "--worker=0/2")
  # By turns: shards 0, 2, 4 and 1, 3 of the plan.
  assert parts == {"host_000": whole[::2], "host_001": whole[1::2]}
  assert door.main(["verify", f"--workdir={workdir}"]) == 0
  assert door.main(["train", *SMALL, f"--workdir={workdir}"]) == 0


def test_a_host_without_a_shard_is_refused_before_anything_is_kept(
    tmp_path, capsys
):
  """Of 5 groups of 4, 8 records a shard: 3 shards; mended, it goes on."""
  words = ["generate", *SMALL, f"--workdir={tmp_path}", "--worker=0/5"]
  flag = "--config.generation.records_per_shard=8"
  assert door.main([*words, flag]) == door.USER_ERROR
  assert "shards for 5 hosts, found 3 of up to 8" in capsys.readouterr().err
  assert [path.name for path in tmp_path.glob("[!.]*")] == []
  assert door.main(words) == 0


def test_folders_of_two_splits_are_no_round(tmp_path):
  generate(tmp_path, "--worker=0/2")
  generate(tmp_path, "--worker=2/3")
  members = sorted(folders.round_folder(tmp_path, 0).iterdir())
  with pytest.raises(ValueError, match="rounds in 2 and 3 parts"):
    folders.require_round(members)


def test_workers_keep_out_their_like_and_other_commands(tmp_path):
  with folders.alone(tmp_path, "0/2"), folders.alone(tmp_path, "1/2"):
    for other in ("", "0/2"):
      with pytest.raises(ValueError, match="another command"):
        with folders.alone(tmp_path, other):
          pass
  with folders.alone(tmp_path):
    with pytest.raises(ValueError, match="another command"):
      with folders.alone(tmp_path, "0/2"):
        pass


@pytest.mark.parametrize("text", ["2/2", "1", "-1/2", "a/b", "0/0", "00/2"])
def test_a_worker_that_is_none_is_refused(text):
  with pytest.raises(ValueError, match="expected K/N"):
    distributed.share(config_of(f"--worker={text}"))


def test_a_worker_is_a_part_and_trains_nothing(tmp_path, capsys):
  assert distributed.share(config_of("--worker=3/16")) == (3, 16)
  assert distributed.share(config_of()) == (0, 1)
  words = [*SMALL, "--config.distributed.worker=0/2", f"--workdir={tmp_path}"]
  assert door.main(["train", *words]) == door.USER_ERROR
  assert "found the verb train" in capsys.readouterr().err


@pytest.mark.parametrize(
    "environment, several",
    [
        ({}, False),
        # The shell of a SLURM job of many, and of one in it that srun began.
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4",
          "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "t-0,t-1"}, True),
    ],
)
def test_the_environment_says_whether_there_are_others(environment, several):
  assert hosts.several_in(environment) == several


def test_nothing_is_joined_where_nothing_is_there(monkeypatch):
  joined = []
  monkeypatch.setattr(
      jax.distributed, "initialize", lambda *given: joined.append(given)
  )
  monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
  hosts.start("", 1, 0)
  assert not joined
  monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
  hosts.start("", 1, 0)
  hosts.start("host:1234", 4, 3)
  hosts.start("[::1]:1234", 4, 3)
  assert joined == [(), ("host:1234", 4, 3), ("[::1]:1234", 4, 3)]
  texts = ("host", "host:", ":1", "host:x", "host:0", "host:65536", "a:b:1")
  for odd in (*((text, 4, 3) for text in texts), ("host:1234", 4, 4)):
    with pytest.raises(ValueError, match="give all three, or none"):
      hosts.start(*odd)


def test_processes_share_things_side_by_side(monkeypatch):
  assert hosts.share(7) == range(7)
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  found = []
  for index in range(3):
    monkeypatch.setattr(jax, "process_index", lambda index=index: index)
    found.append(list(hosts.share(7)))
  assert found == [[0, 1], [2, 3], [4, 5, 6]]


@pytest.fixture(name="second_of_two")
def _second_of_two(monkeypatch):
  """This process is the second of two; returns what the first one says.

  A text, or a function of what this process says.
  """
  said = {"first": ""}

  def exchange(text):
    first = said["first"]
    return [first(text) if callable(first) else first, text]

  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  monkeypatch.setattr(hosts, "exchange", exchange)
  return said


def test_what_another_host_lacks_stops_this_one(second_of_two):
  second_of_two["first"] = "model.path: there is nothing at m; correct it."
  config, text_tokenizer = config_of(), tokenizer_lib.load("bytes")
  for reads in (
      parts.tokenizer,
      lambda config: parts.prompts(config, text_tokenizer),
      lambda config: parts.model(config, text_tokenizer),
  ):
    with pytest.raises(ValueError, match="nothing at m"):
      reads(config)


def test_hosts_must_see_the_same_folder(second_of_two, tmp_path):
  (tmp_path / ".seen_1").touch()
  mark = ".seen_1"
  second_of_two["first"] = lambda text: mark if text.startswith(".") else ""
  with folders.alone(tmp_path):
    pass
  mark = ".seen_2"
  with pytest.raises(ValueError, match="process 1 does not see"):
    with folders.alone(tmp_path):
      pass


def test_no_host_goes_on_before_the_first_has_written(monkeypatch, tmp_path):
  """Else another reads feedback that is not there yet."""
  state = state_lib.TrainState(
      None, None, state_lib.no_updates(), state_lib.Position(2), ""
  )
  path, seen = feedback.path_of(tmp_path, 2), []
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(
      hosts, "exchange", lambda text: seen.append(path.is_file()) or [text]
  )
  assert allocation.leave_out(state, tmp_path).position.round == 3
  assert seen == [True]
  path.unlink()
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  allocation.leave_out(state, tmp_path)
  assert seen == [True, False]
