"""A small cloud for the scripts: a stand-in gcloud, hosts in folders."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
STAND_IN = pathlib.Path(__file__).parent / "cloud.py"
AT = ["--project=my-project", "--zone=us-west4-a", "--quiet"]
# Makes environments and notes what it is told to install.
HOST_PYTHON = """#!/bin/bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip "*) echo "$*" >> "$HOME/installed" ;;
  *version_info*) echo 3.13 ;;
esac
"""


class Cloud:
  """A checkout of its own with the scripts, and a cloud that plays a plan."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder / "cloud"
    self.checkout = folder / "checkout"
    if self.folder.exists():
      return
    for path in ("bin", "host_bin"):
      (self.folder / path).mkdir(parents=True)
    gcloud = self.folder / "bin/gcloud"
    gcloud.write_text(f"#!{sys.executable} -SE\n{STAND_IN.read_text()}")
    gcloud.chmod(0o755)
    python = self.folder / "host_bin/python3.13"
    python.write_text(HOST_PYTHON)
    python.chmod(0o755)
    self.plan()

  def plan(self, **entries):
    """Sets what the stand-in plays, from the start."""
    for counter in self.folder.glob("played_*"):
      counter.unlink()
    (self.folder / "plan.json").write_text(json.dumps(entries))

  def start(self, script: str, *arguments: str, **settings: str):
    """Starts a script with short intervals; a process is returned."""
    environment = {
        "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        "CLOUD": str(self.folder),
        "HOME": str(self.folder),
        "TPU_POLL_S": "0.05",
        "TPU_RETRY_S": "0.05",
        "TPU_RETRIES": "3",
        **settings,
    }
    scripts = self.checkout if self.checkout.exists() else ROOT
    named = ["--name=my-first", *AT[:2]]
    return subprocess.Popen(
        ["bash", str(scripts / "tpu_scripts" / script), *named, *arguments],
        env=environment, cwd=self.folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A shell that puts the tests into the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

  def run(self, script: str, *arguments: str, **settings: str):
    """Runs a script to its end: exit code, standard output and error."""
    process = self.start(script, *arguments, **settings)
    output, error = process.communicate(timeout=60)
    return process.returncode, output, error

  def calls(self, verb: str = "") -> list[list[str]]:
    """Lists the calls of gcloud, or those of one verb."""
    path = self.folder / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    calls = [json.loads(line) for line in lines]
    return [call for call in calls if verb in ("", call[3])]

  def exists(self) -> bool:
    """Tells whether anything is left that costs."""
    return any((self.folder / name).exists() for name in ("queued", "node"))

  def home(self, host: int) -> pathlib.Path:
    """Returns what ssh sees as the home of a host."""
    return self.folder / f"host_{host}"

  def commit(self, message: str = "change"):
    """Commits all of the checkout."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["add", "-A"], ["commit", "-qm", message]):
      subprocess.run([*git, *words], cwd=self.checkout, check=True)

  def wait_until(self, condition):
    """Waits until a condition holds; an error after 20 s."""
    for _ in range(400):
      if condition():
        return
      time.sleep(0.05)
    raise AssertionError("the condition never held")


@pytest.fixture
def cloud(tmp_path) -> Cloud:
  """A cloud with nothing in it."""
  return Cloud(tmp_path)


def make_slice(folder: pathlib.Path) -> Cloud:
  """Makes a READY slice of two hosts and a checkout to copy there."""
  made = Cloud(folder)
  for name in ("queued", "node"):
    (made.folder / name).touch()
  shutil.copytree(ROOT / "tpu_scripts", made.checkout / "tpu_scripts")
  shutil.copy(ROOT / "setup.py", made.checkout)
  (made.checkout / "tests").mkdir()
  shutil.copy(ROOT / "tests/lock-3.13.txt", made.checkout / "tests")
  subprocess.run(["git", "init", "-q"], cwd=made.checkout, check=True)
  made.commit()
  return made


@pytest.fixture
def slice_(tmp_path) -> Cloud:
  """A READY slice of two hosts and a checkout to copy there."""
  return make_slice(tmp_path)


@pytest.fixture(scope="session")
def set_up(tmp_path_factory) -> pathlib.Path:
  """A folder with a slice that is set up."""
  folder = tmp_path_factory.mktemp("set_up")
  made = make_slice(folder)
  code, _, error = made.run("setup.sh")
  assert code == 0, error
  (made.folder / "calls.jsonl").unlink()
  return folder


@pytest.fixture
def ready(set_up, tmp_path) -> Cloud:
  """A slice that is set up, with no calls so far."""
  shutil.copytree(set_up, tmp_path, symlinks=True, dirs_exist_ok=True)
  return Cloud(tmp_path)
