"""Headers of the scripts, the JobSet and the Slurm file."""

import os
import pathlib
import re
import string
import subprocess

import pytest
import yaml

SCRIPTS = pathlib.Path(__file__).parents[2] / "tpu_scripts"
SHELL = sorted([*SCRIPTS.glob("*.sh"), *SCRIPTS.glob("*.sbatch")])
COMMANDS = [path for path in SHELL if path.name != "settings.sh"]
ANSWERS = {
    "JOB": "first",
    "IMAGE": "registry.example/image:tag",
    "CLAIM": "runs",
    "ACCELERATOR": "tpu-v5-lite-podslice",
    "TOPOLOGY": "4x4",
    "HOSTS": "4",
    "CHIPS": "4",
    "CONFIG": "configs/quickstart.py",
}


def header(path: pathlib.Path) -> str:
  """Returns the comment that a file opens with."""
  return re.match(r"(#.*\n)+", path.read_text(encoding="utf-8"))[0]


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_script_is_valid_shell(path):
  subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize(
    "path", [*COMMANDS, SCRIPTS / "jobset.yaml"], ids=lambda path: path.name
)
def test_header_says_command_hardware_cost_time_and_what_to_expect(path):
  words = header(path)
  assert path.name in words
  for word in ("Hardware", "Cost", "time", "Expect"):
    assert word.lower() in words.lower(), word


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_script_stops_at_the_first_error(path):
  assert "\nset -euo pipefail\n" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["create", "setup", "run", "logs", "fetch", "delete"]
)
def test_help_is_the_header(name):
  path = SCRIPTS / f"{name}.sh"
  found = subprocess.run(
      ["bash", path, "--help"], capture_output=True, text=True, check=True
  )
  lines = header(path).splitlines()[1:]
  assert found.stdout.splitlines() == [
      line.removeprefix("#").removeprefix(" ") for line in lines
  ]


def test_every_placeholder_of_the_jobset_is_explained():
  path = SCRIPTS / "jobset.yaml"
  words = header(path)
  body = path.read_text(encoding="utf-8").removeprefix(words)
  used = set(re.findall(r"\$\{(\w+)\}", body))
  assert used == set(re.findall(r"^#   \$\{(\w+)\} ", words, re.MULTILINE))
  assert used == set(ANSWERS)


def test_jobset_asks_every_host_for_its_chips():
  text = (SCRIPTS / "jobset.yaml").read_text(encoding="utf-8")
  manifest = yaml.safe_load(string.Template(text).substitute(ANSWERS))
  assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
  (job,) = manifest["spec"]["replicatedJobs"]
  spec = job["template"]["spec"]
  assert spec["parallelism"] == spec["completions"] == 4
  assert spec["backoffLimit"] == 0
  (container,) = spec["template"]["spec"]["containers"]
  assert container["resources"]["limits"] == {"google.com/tpu": 4}
  assert container["command"][-2:] == [
      "--config=configs/quickstart.py", "--workdir=/runs/first"
  ]


def sbatch(folder: pathlib.Path, *words: str):
  """Runs the batch script as Slurm would, with a stand-in for srun."""
  srun = folder / "srun"
  srun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\nexit 75\n')
  srun.chmod(0o755)
  environment = {
      "PATH": f"{folder}:{os.environ['PATH']}",
      "SLURM_SUBMIT_DIR": str(folder),
  }
  return subprocess.run(
      ["bash", SCRIPTS / "gpu.sbatch", *words],
      env=environment, capture_output=True, text=True,
  )


def test_sbatch_passes_flags_and_exit_code(tmp_path):
  flags = ["--config=configs/quickstart.py", "--workdir=runs/a b"]
  found = sbatch(tmp_path, *flags)
  assert (found.returncode, found.stdout) == (2, "")
  assert "expected .venv" in found.stderr
  python = tmp_path / ".venv/bin/python"
  python.parent.mkdir(parents=True)
  python.touch(0o755)
  found = sbatch(tmp_path, *flags)
  assert found.returncode == 75
  assert found.stdout.splitlines() == [
      "--kill-on-bad-exit=1", ".venv/bin/python", "-m", "jaxrl_llm", "run",
      *flags,
  ]
  found = sbatch(tmp_path)
  assert found.returncode == 2
  assert "expected the flags of `run`" in found.stderr
