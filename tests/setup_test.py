"""The package's ranges, the lock files and the interpreter agree."""

import importlib.metadata
import pathlib
import re
import runpy
import subprocess
import sys
import types

from packaging import requirements
from packaging import utils
import pytest

ROOT = pathlib.Path(__file__).parents[1]
LOCKS = sorted(ROOT.glob("tests/lock-*.txt"))


def declared(monkeypatch) -> dict:
  """Returns what setup.py hands to setuptools."""
  handed = {}
  stub = types.SimpleNamespace(
      setup=handed.update, find_packages=lambda include: include
  )
  monkeypatch.setitem(sys.modules, "setuptools", stub)
  runpy.run_path(str(ROOT / "setup.py"))
  return handed


def locked(path: pathlib.Path) -> dict[str, str]:
  """Reads a lock file: canonical name → version."""
  pins = (line.split("==") for line in path.read_text().splitlines())
  return {utils.canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_lock_pins_versions_within_the_ranges_of_setup(path, monkeypatch):
  lines = path.read_text().splitlines()
  assert all(re.fullmatch(r"[\w.\-]+==[\w.]+", line) for line in lines)
  pins = locked(path)
  package = declared(monkeypatch)
  wanted = package["install_requires"] + package["extras_require"]["test"]
  for text in wanted:
    requirement = requirements.Requirement(text)
    version = pins[utils.canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), (text, version)


def test_environment_of_the_tests_is_the_locked_one():
  name = f"lock-{sys.version_info.major}.{sys.version_info.minor}.txt"
  pins = locked(ROOT / "tests" / name)
  for name in ("jax", "flax", "numpy", "optax", "tensorflow-datasets"):
    assert importlib.metadata.version(name) == pins[name]


def test_set_up_refuses_an_interpreter_without_a_lock():
  found = subprocess.run(
      ["bash", "experiments/setup_env.sh"],
      cwd=ROOT, env={"PYTHON": "/bin/false", "PATH": "/usr/bin:/bin"},
      capture_output=True, text=True,
  )
  assert found.returncode == 1
  assert found.stderr.count("\n") == 1 and "PYTHON=" in found.stderr
