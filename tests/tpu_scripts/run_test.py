"""setup.sh, run.sh and logs.sh, against a stand-in for gcloud.

The stand-in runs what is sent by ssh in a folder per host, so that the part on
the hosts is tested too.
"""

import os
import pathlib
import signal
import subprocess

import pytest

AT = ["--project=my-project", "--zone=us-west4-a", "--quiet"]
SSH_FLAGS = [
    "--ssh-flag=-o ConnectTimeout=15",
    "--ssh-flag=-o ServerAliveInterval=15",
    "--ssh-flag=-o ServerAliveCountMax=4",
]
HOSTS = [
    "compute", "tpus", "tpu-vm", "describe", "my-first", *AT,
    "--format=value(state,networkEndpoints.len())",
]


def commit_of(cloud) -> str:
  """Returns the commit that setup.sh copies."""
  return subprocess.run(
      ["git", "rev-parse", "--short=12", "HEAD"], cwd=cloud.checkout,
      capture_output=True, text=True, check=True,
  ).stdout.strip()


def by_host(text: str, host: int) -> list[str]:
  """Lists the lines of one host, without its mark."""
  mark = f"[{host}] "
  lines = text.splitlines()
  return [line.removeprefix(mark) for line in lines if line.startswith(mark)]


def verb_calls(cloud, verb: str) -> list[list[str]]:
  """Lists the ssh calls that run a verb of on_host.sh."""
  return [c for c in cloud.calls("ssh") if f"on_host.sh {verb}" in c[-1]]


def test_setup_copies_the_commit_and_makes_the_environment(slice_):
  commit = commit_of(slice_)
  (slice_.checkout / "uncommitted.py").touch()
  (slice_.checkout / "setup.py").write_text("broken")
  code, output, error = slice_.run("setup.sh")
  assert code == 0, error
  assert "uncommitted changes are not copied" in error
  copy = slice_.calls("scp")
  archive = pathlib.Path(copy[0][4])
  assert archive.name == f"jaxrl_llm-{commit}.tar.gz"
  assert copy == [[
      "compute", "tpus", "tpu-vm", "scp", str(archive), "my-first:", *AT,
      "--worker=all",
  ]]
  for host in range(2):
    assert f"is set up with {commit}" in by_host(output, host)[0]
    home = slice_.home(host) / "jaxrl_llm"
    assert (home / "current").readlink() == pathlib.Path(commit)
    assert (home / "current/setup.py").read_text() != "broken"
    assert not (home / "current/uncommitted.py").exists()
    assert (home / "current/runs").resolve() == home / "runs"
    checkout = home / commit
    assert (home.parent / "installed").read_text() == (
        f"-m pip install --quiet -c {checkout}/tests/lock-3.13.txt"
        f" {checkout}[tpu,gguf]\n"
    )
  calls = [call[:-1] for call in slice_.calls("ssh")]
  assert sorted(calls) == [
      ["compute", "tpus", "tpu-vm", "ssh", "my-first", *AT,
       f"--worker={host}", *SSH_FLAGS]
      for host in range(2)
  ]


def test_setup_again_installs_only_what_changed(ready):
  installed = ready.home(0) / "installed"
  assert ready.run("setup.sh")[0] == 0
  assert len(installed.read_text().splitlines()) == 1
  (ready.checkout / "a.py").touch()
  ready.commit()
  assert ready.run("setup.sh")[0] == 0
  assert len(installed.read_text().splitlines()) == 1
  assert (ready.home(1) / "jaxrl_llm/current/a.py").exists()
  with open(ready.checkout / "tests/lock-3.13.txt", "a") as lock:
    lock.write("more==1\n")
  ready.commit()
  assert ready.run("setup.sh")[0] == 0
  assert len(installed.read_text().splitlines()) == 2


def test_setup_that_was_cut_short_is_done_again(ready):
  for part in ("current", ".venv/stamp"):
    (ready.home(0) / "jaxrl_llm" / part).unlink()
  code, _, error = ready.run("run.sh", "--", "true")
  assert code == 3, error
  assert ready.run("setup.sh")[0] == 0
  code, _, error = ready.run("run.sh", "--", "true")
  assert code == 0, error


def test_setup_with_a_host_down_says_so(slice_):
  slice_.plan(down=[1])
  code, _, error = slice_.run("setup.sh")
  assert code == 1
  assert error == (
      "setup.sh: cannot copy to my-first: ERROR: (gcloud) ssh: connect to host"
      " port 22: Connection timed out\n"
  )


def test_run_is_the_same_command_on_every_host(ready):
  words = ["bash", "-c", 'echo "$0 in $PWD"; echo "it\'s $1" >&2', "a b", "*"]
  code, output, error = ready.run("run.sh", "--", *words)
  assert code == 0, error
  for host in range(2):
    folder = (ready.home(host) / "jaxrl_llm/current").resolve()
    assert by_host(output, host) == [f"a b in {folder}", "it's *"]
  assert len(output.splitlines()) == 4
  assert "logs.sh: host 1 ended with 0" in error
  assert ready.calls("describe") == [HOSTS, HOSTS]
  starts = verb_calls(ready, "start")
  assert sorted(call[:-1] for call in starts) == [
      ["compute", "tpus", "tpu-vm", "ssh", "my-first", *AT,
       f"--worker={host}", *SSH_FLAGS]
      for host in range(2)
  ]


@pytest.mark.parametrize("codes,worst", [((0, 0), 0), ((0, 75), 75),
                                         ((75, 1), 75), ((3, 0), 3)])
def test_exit_code_is_the_largest_of_the_hosts(ready, codes, worst):
  for host, code in enumerate(codes):
    (ready.home(host) / "code").write_text(str(code))
  code, _, error = ready.run("run.sh", "--", "bash", "-c",
                             'exit "$(cat ~/code)"')
  assert code == worst, error
  for host, expected in enumerate(codes):
    assert f"host {host} ended with {expected}" in error


def test_command_outlives_the_connection_and_each_line_comes_once(ready):
  # The followings of host 1 break after 2, 1 and 3 lines, those of host 0 do
  # not. The last line has no newline.
  ready.plan(cuts_1=[2, 1, 3])
  loop = "for i in {1..20}; do echo line $i; sleep 0.05; done; printf end"
  code, output, error = ready.run("run.sh", "--", "bash", "-c", loop)
  assert code == 0, error
  for host in range(2):
    lines = [f"line {i}" for i in range(1, 21)] + ["end"]
    assert by_host(output, host) == lines
  assert len(verb_calls(ready, "start")) == 2
  assert len(verb_calls(ready, "follow")) == 1 + 4


def test_command_that_gcloud_repeats_is_started_once(ready):
  ready.plan(repeats=True)
  once = "echo up; echo x >> ~/starts; sleep 0.3; echo down"
  code, output, error = ready.run("run.sh", "--", "bash", "-c", once)
  assert code == 0, error
  for host in range(2):
    assert by_host(output, host) == ["up", "down"]
    assert (ready.home(host) / "starts").read_text() == "x\n"


def test_host_that_is_down_is_one_line_and_nothing_starts(ready):
  ready.plan(down=[1])
  code, output, error = ready.run("run.sh", "--", "touch", "started")
  assert (code, output) == (255, "")
  assert error.splitlines() == [
      "run.sh: host 1 cannot be reached: ERROR: (gcloud) ssh: connect to host"
      " port 22: Connection timed out",
      "run.sh: nothing was started; see above.",
  ]
  assert not verb_calls(ready, "start")


def test_host_that_is_lost_ends_the_following(ready):
  # No line arrives between the breaks, so the third is the last.
  ready.plan(cuts_1=[1] + [0] * 9)
  sleeping = "echo up; sleep 600"
  code, output, error = ready.run("run.sh", "--", "bash", "-c", sleeping,
                                  TPU_GRACE_S="0")
  assert code == 255
  assert by_host(output, 1) == ["up"]
  assert "logs.sh: host 1 is lost, my-first is READY: ERROR" in error
  assert "still running 0 s after the first failure: host 0;" in error
  ready.plan()
  assert ready.run("run.sh", "--stop")[0] == 0


def test_slice_that_is_preempted_is_said_at_once(ready):
  # READY for run.sh and logs.sh, then taken away.
  ready.plan(cuts_0=[1], node_states=["READY"] * 2, node_state="PREEMPTED")
  code, _, error = ready.run(
      "run.sh", "--", "bash", "-c", "echo up; sleep 600",
      TPU_GRACE_S="0", TPU_RETRIES="99", TPU_RETRY_S="600",
  )
  assert code == 255
  assert "host 0 is lost, my-first is PREEMPTED" in error
  code, _, error = ready.run("run.sh", "--", "true")
  assert code == 1
  assert "expected my-first to be READY, found PREEMPTED" in error
  ready.plan()
  assert ready.run("run.sh", "--stop")[0] == 0


def test_stopped_command_saves_and_its_code_comes_through(ready):
  saves = (
      "trap 'echo saving; sleep 0.3; touch ~/saved; exit 75' TERM; echo up;"
      " while :; do sleep 0.1; done"
  )
  process = ready.start("run.sh", "--", "bash", "-c", saves)
  assert process.stdout.readline().endswith("up\n")
  assert process.stdout.readline().endswith("up\n")
  process.send_signal(signal.SIGINT)
  _, error = process.communicate(timeout=20)
  assert process.returncode == 130
  assert "the command goes on; run.sh --stop ends it." in error
  code, output, _ = ready.run("run.sh", "--", "true")
  assert code == 3 and "still running: bash -c" in output
  assert not (ready.home(0) / "saved").exists()
  code, _, error = ready.run("run.sh", "--stop")
  assert code == 0, error
  code, output, error = ready.run("logs.sh")
  assert code == 75, error
  for host in range(2):
    # Between them bash tells of the sleep that the signal ended.
    lines = by_host(output, host)
    assert (lines[0], lines[-1]) == ("up", "saving")
    assert (ready.home(host) / "saved").exists()
  assert ready.run("run.sh", "--", "true")[0] == 0


def test_command_that_left_no_code_is_137(ready):
  process = ready.start("run.sh", "--", "bash", "-c", "echo up; sleep 600")
  for _ in range(2):
    assert process.stdout.readline().endswith("up\n")
  for host in range(2):
    pid = int((ready.home(host) / "jaxrl_llm/jobs/last/pid").read_text())
    os.killpg(pid, signal.SIGKILL)
  _, error = process.communicate(timeout=20)
  assert process.returncode == 137, error


def test_stop_and_logs_before_anything_ran(ready):
  assert ready.run("run.sh", "--stop")[0] == 0
  code, output, _ = ready.run("logs.sh")
  assert code == 3
  assert by_host(output, 0) == ["nothing was started; use run.sh"]


@pytest.mark.parametrize(
    "arguments,words",
    [
        ([], "expected '-- COMMAND …', found no command"),
        (["--"], "expected '-- COMMAND …', found no command"),
        (["python"], "expected a flag or '--', found 'python'"),
    ],
)
def test_run_without_a_command_is_one_line(cloud, arguments, words):
  code, _, error = cloud.run("run.sh", *arguments)
  assert code == 2
  assert len(error.splitlines()) == 1 and words in error
  assert cloud.calls() == []
