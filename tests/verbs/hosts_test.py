"""Two processes of `jax.distributed` are one job: killed, resumed, verified."""

import os
import pathlib
import socket
import subprocess
import sys

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


def start(workdir, told, signal="SIGKILL", count=0) -> list[subprocess.Popen]:
  """Starts both hosts of a run; the second may get a signal in an update."""
  port, started = free_port(), []
  for host in range(2):
    words, environment = told(host, port)
    started.append(
        subprocess.Popen(
            [sys.executable, HERE / "one_host.py", signal,
             str(host * count), "run", *SMALL, *words,
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


def test_two_hosts_are_killed_and_resume_to_the_bit(tmp_path, capsys):
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  first, second = finish(start(whole, by_flags))
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
