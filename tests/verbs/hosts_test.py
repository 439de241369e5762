"""Two processes of `jax.distributed` are one job: killed, resumed, verified."""

import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.data import shards
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import metrics
from jaxrl_llm.training import preemption
import run_test

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT = 300  # Seconds; only a busy machine needs more than a few.
# A round is 2 epochs of 2 updates, on 2 shards of 8 records.
SMALL = [
    f"--config={ROOT / 'configs/tiny.py'}",
    "--config.mesh=fsdp=2",
    "--config.prompts.count=64",
    "--config.prompts.eval_count=3",
    "--config.generation.prompts_per_round=4",
    "--config.generation.samples_per_prompt=4",
    "--config.generation.records_per_shard=8",
    "--config.generation.slots=4",
    "--config.train.groups_per_minibatch=2",
    "--config.train.rows_per_microbatch=2",
    "--config.train.tokens_per_row=200",
    "--config.train.checkpoint_every=1",
    "--config.train.keep_uniform_groups=True",
    # A gradient although random weights earn no reward.
    "--config.objective.entropy_coefficient=0.01",
    "--config.run.rounds=1",
    "--config.evaluation.samples=2",
    "--config.evaluation.pass_at=1,2",
]


def free_port() -> int:
  with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    return found.getsockname()[1]


def by_flags(host: int, port: int) -> tuple[list[str], dict[str, str]]:
  flags = {"coordinator": f"127.0.0.1:{port}", "process_count": 2,
           "process_index": host}
  words = [f"--config.distributed.{k}={v}" for k, v in flags.items()]
  return words, {}


def by_open_mpi(host: int, port: int) -> tuple[list[str], dict[str, str]]:
  """What mpirun sets; JAX makes the port from the number of the job."""
  job = (port - (65535 - 2**12 + 1)) % 2**12 * 2**12
  return [], {
      "OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:1",
      "OMPI_COMM_WORLD_SIZE": "2",
      "OMPI_COMM_WORLD_RANK": str(host),
      "OMPI_COMM_WORLD_LOCAL_RANK": "0",
  }


def start(
    workdir, told, signal="SIGKILL", count=0, verb="run", flags=()
) -> list[subprocess.Popen]:
  """Starts both hosts of a job; the second may get a signal in an update."""
  port, started = free_port(), []
  for host in range(2):
    words, environment = told(host, port)
    started.append(
        subprocess.Popen(
            [sys.executable, HERE / "one_host.py", signal,
             str(host * count), verb, *SMALL, *words, *flags,
             f"--workdir={workdir}"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )
    )
  return started


def finish(started: list[subprocess.Popen], code: int = 0) -> list[str]:
  """Waits until both have ended with a code; returns what each printed."""
  printed = [process.communicate(timeout=LIMIT)[0] for process in started]
  for process, text in zip(started, printed):
    assert process.returncode == code, text[-3000:]
  return printed


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory) -> tuple[pathlib.Path, list[str]]:
  """A run of two hosts, and what each printed."""
  workdir = tmp_path_factory.mktemp("whole")
  return workdir, finish(start(workdir, by_flags))


@pytest.fixture(name="graded", scope="module")
def _graded(run, tmp_path_factory) -> pathlib.Path:
  """The run's shards with rewards and a masked token, that it has none of."""
  parent = tmp_path_factory.mktemp("graded")
  for path in sorted((run[0] / "rollouts/round_00000").iterdir()):
    folder = shards.open_folder(path)
    writer = shards.ShardWriter(parent / path.name, folder.metadata, 1)
    rollouts = []
    for n in range(len(folder)):
      mask = folder[n].response_mask.copy()
      mask[n // 2 :] = False
      mask[0] = True
      rollouts.append(
          dataclasses.replace(
              folder[n], reward=float(n % 3 == 0), response_mask=mask
          )
      )
    writer.write(0, rollouts)
    writer.finish()
  return parent


def train_twice(rollouts, tmp_path, *flags) -> list[str]:
  """Trains by two hosts and by one, alike; returns what each of two printed."""
  flags = [
      f"--config.train.rollouts={rollouts}",
      # Else Adam makes whole steps of gradients that are rounding.
      "--config.train.epsilon=1e-3",
      *flags,
  ]
  two, one = tmp_path / "two", tmp_path / "one"
  printed = finish(start(two, by_flags, verb="train", flags=flags))
  flags = [*SMALL, "--config.mesh=fsdp=1", *flags, f"--workdir={one}"]
  assert door.main(["train", *flags]) == 0
  compare(two, one)
  return printed


def updates_of(workdir: pathlib.Path) -> list[dict]:
  lines = metrics.read(workdir / "metrics.jsonl")
  return [line for line in lines if line["kind"] == "update"]


def compare(two: pathlib.Path, one: pathlib.Path) -> None:
  """Expects of two hosts what one has learned and said, to rounding."""
  for ours, theirs in zip(
      run_test.params_of(two), run_test.params_of(one), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  updates = updates_of(two), updates_of(one)
  for name in ("grad_norm", "loss", "tokens", "row_tokens", "fill", "reward"):
    ours, theirs = ([x[name] for x in said] for said in updates)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
  said = [path / "feedback/round_0000.json" for path in (two, one)]
  assert said[0].read_text() == said[1].read_text()


def test_a_host_reads_its_part_and_all_learn_the_same(graded, tmp_path):
  """Each of 16 records by one host, and by its half of the rows in training."""
  flag = "--config.train.groups_per_minibatch=4"
  printed = train_twice(graded, tmp_path, flag)
  updates = updates_of(tmp_path / "two")
  assert [x["microbatches"] for x in updates] == [2, 2]
  reads = [
      json.loads(text[text.rindex("READ ") + 5 :]) for text in printed
  ]
  everything = sorted(f"host_00{host}/{n}" for host in (0, 1) for n in range(8))
  # The index; rows that are scored; recorded log-probs at the beginning and
  # what became of them at the end; two epochs. A row holds one of four groups.
  for module, passes in {
      "opening": 1, "scoring": 1, "recorded": 2, "packed": 2
  }.items():
    first, second = (said[module] for said in reads)
    assert len(first) == len(second) == 8 * passes, module
    assert sorted(first + second) == sorted(passes * everything), module
  for said in reads:
    # The step-0 report explains itself by the same few records on both.
    assert said.keys() == {
        "opening", "scoring", "recorded", "packed", "reporting"
    }
    assert said["reporting"] == reads[0]["reporting"]
    assert 0 < len(said["reporting"]) <= 4


def test_curated_records_change_hosts(graded, tmp_path):
  """Rows are packed anew behind a curation, and weights go with the records.

  Of each four, two are right, and all |A| are 0.87, or one, and the others'
  0.5 is below the threshold: 2 · 4 + 2 · 1 are left in each epoch.
  """
  train_twice(
      graded,
      tmp_path,
      "--config.curation.name=cppo_completion",
      "--config.curation.prune_threshold=0.6",
  )
  updates = updates_of(tmp_path / "two")
  assert len(updates) == 4 and all(x["grad_norm"] for x in updates)
  assert sum(x["curation/survivors"] for x in updates) == 20


def test_damage_that_one_host_finds_stops_both(graded, tmp_path):
  """A byte of the second folder's shard, whose checksum the second makes."""
  shutil.copytree(graded, tmp_path / "damaged")
  (shard,) = (tmp_path / "damaged/host_001").glob("*.array_record-*")
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 1
  shard.write_bytes(content)
  flags = [f"--config.train.rollouts={shard.parents[1]}"]
  started = start(tmp_path / "run", by_flags, verb="train", flags=flags)
  printed = finish(started, door.USER_ERROR)
  for text in printed:
    (line,) = [x for x in text.splitlines() if "error: " in x]
    problem = f"error: {shard}: its checksum is not the manifest's"
    assert line.startswith(f"jaxrl_llm train: {problem}"), text


def test_hosts_that_were_told_different_things_do_nothing(tmp_path):
  """Else each goes its own way: another seed, or a step of another size."""

  def told(host, port):
    words, environment = by_flags(host, port)
    rate = f"--config.train.learning_rate={0.01 * (1 + host)}"
    return [*words, f"--config.seed={host}", rate], environment

  for text in finish(start(tmp_path, told), door.USER_ERROR):
    (line,) = [x for x in text.splitlines() if "error: " in x]
    assert "seed (0, there 1)" in line, line
    assert "train.learning_rate (0.01, there 0.02)" in line, line
  assert not list(tmp_path.iterdir())


def test_two_hosts_are_killed_and_resume_to_the_bit(run, tmp_path, capsys):
  (whole, (first, second)), killed = run, tmp_path / "killed"
  assert "gain" in first and "gain" not in second
  updates = metrics.read(whole / "metrics.jsonl")
  norms = [x["grad_norm"] for x in updates if x["kind"] == "update"]
  assert len(norms) == 4 and min(norms) > 0
  parts = sorted((whole / "rollouts/round_00000").iterdir())
  assert [path.name for path in parts] == ["host_000", "host_001"]
  assert [len(shards.open_folder(path)) for path in parts] == [8, 8]
  assert list(checkpoints.complete_steps(whole / "checkpoints")) == [3, 4]

  # Told of one host, both save the same update: the second, or, where the
  # news is late, the third.
  finish(start(killed, by_flags, "SIGTERM", 1), preemption.EXIT_CODE)
  saved = max(checkpoints.complete_steps(killed / "checkpoints"))
  assert saved in (2, 3)

  # The second host dies in its next update, and the first is killed.
  started = start(killed, by_flags, "SIGKILL", 1)
  assert started[1].wait(timeout=LIMIT) == -9, started[1].communicate()[0]
  started[0].kill()
  started[0].communicate()
  assert max(checkpoints.complete_steps(killed / "checkpoints")) == saved

  finish(start(killed, by_open_mpi))
  assert run_test.shard_bytes(killed) == run_test.shard_bytes(whole)
  for ours, theirs in zip(
      run_test.params_of(killed), run_test.params_of(whole), strict=True
  ):
    assert ours.tobytes() == theirs.tobytes()
  assert door.main(["verify", f"--workdir={killed}"]) == 0
  assert "2 folders, 16 records read, 0 problems" in capsys.readouterr().out
