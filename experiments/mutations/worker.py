"""Runs the tests of the losses on a copy of the package, one mutant a fork.

The parent has imported what the tests need but nothing of the package; each
child imports the package of the copy as it then stands.
"""

import dataclasses
import importlib
import json
import os
import pathlib
import shutil
import sys
import time
import traceback

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "jaxrl_llm"
COPIED = (PACKAGE, "configs", "tests", "pytest.ini")
STAGES = ("fast", "rest")
# Cheap and telling files first; those of the second stage come last.
FILES = (
    "golden_test", "kernels_test", "regularizers_test", "bounds_test",
    "golden_corrections_test", "golden_regions_test", "golden_topk_test",
    "cases_test", "advantages_test", "spec_test", "invariance_test",
)
_WARM = (
    "jax", "jax.numpy", "numpy", "chex", "hypothesis",
    "hypothesis.extra.numpy", "hypothesis.strategies",
)


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What the tests said.

  Attributes:
    status: caught, survived, or broken (the package cannot be imported, or
      the tests did not end).
    test: the test that failed first, empty if none.
    reason: first line of its error.
    seconds: wall-clock.
    cpu: seconds of processor time.
  """

  status: str
  test: str
  reason: str
  seconds: float
  cpu: float


def warm() -> None:
  """Imports what no mutant changes."""
  os.environ.setdefault("JAX_PLATFORMS", "cpu")
  os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
  for name in _WARM:
    importlib.import_module(name)
  if PACKAGE in sys.modules:
    raise RuntimeError(f"{PACKAGE} is imported; a fork would not see mutants.")


def fresh_copy(folder: pathlib.Path) -> pathlib.Path:
  """Copies what the tests read to folder/copy, without compiled files."""
  copy = folder / "copy"
  shutil.rmtree(copy, ignore_errors=True)
  copy.mkdir(parents=True)
  for name in COPIED:
    source = ROOT / name
    if source.is_dir():
      skip = shutil.ignore_patterns("__pycache__", ".*")
      shutil.copytree(source, copy / name, ignore=skip)
    else:
      shutil.copy(source, copy / name)
  return copy


class _Plugin:
  """Orders the tests of a stage and remembers the first that failed."""

  def __init__(self, stage: str, first: list[str]):
    self.stage, self.first = stage, first
    self.test = self.reason = self.uncollected = ""

  def pytest_collection_modifyitems(self, config, items):
    mine = [i for i in items if _stage(i.nodeid) == self.stage]
    config.hook.pytest_deselected(items=[i for i in items if i not in mine])
    items[:] = sorted(mine, key=lambda i: self._rank(i.nodeid))

  def _rank(self, test: str) -> tuple[int, int]:
    early = self.first.index(test) if test in self.first else len(self.first)
    module = pathlib.Path(test.split("::")[0]).stem
    return early, FILES.index(module) if module in FILES else len(FILES)

  def pytest_collectreport(self, report):
    if report.failed:
      self.uncollected = self.uncollected or str(report.longrepr)

  def pytest_runtest_logreport(self, report):
    if report.failed and not self.test:
      self.test = report.nodeid
      crash = getattr(report.longrepr, "reprcrash", None)
      text = crash.message if crash else str(report.longrepr)
      self.reason = (text.splitlines() or [""])[0][:200]


def _stage(test: str) -> str:
  slow = "invariance_test" in test or test.endswith("float32]")
  return "rest" if slow else "fast"


def judge(
    copy: pathlib.Path, stage: str, first: list[str], log: pathlib.Path
) -> Verdict:
  """Runs the tests of a stage on the copy as it stands, up to a failure.

  Args:
    copy: from `fresh_copy`, perhaps with a mutant in it.
    stage: one of STAGES.
    first: tests to begin with.
    log: takes what the tests print.
  """
  began = time.monotonic()
  reader, writer = os.pipe()
  child = os.fork()
  if not child:
    os.close(reader)
    _child(copy, stage, first, log, writer)
  os.close(writer)
  with os.fdopen(reader) as pipe:
    told = pipe.read()
  _, _, usage = os.wait4(child, 0)
  told = json.loads(told) if told else {
      "status": "broken", "test": "", "reason": f"died; see {log}"
  }
  return Verdict(
      seconds=round(time.monotonic() - began, 2),
      cpu=round(usage.ru_utime + usage.ru_stime, 2),
      **told,
  )


def _child(copy, stage, first, log, writer) -> None:
  """Tells the parent what the tests said, and ends the process."""
  try:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    here = {"", str(ROOT)}
    sys.path[:] = [str(copy)] + [p for p in sys.path if p not in here]
    # Compiled files are told apart by size and second only.
    sys.dont_write_bytecode = True
    plugin = _Plugin(stage, first)
    code = pytest.main(
        ["tests/losses", "-x", "-q", "--tb=short", "-p", "no:cacheprovider",
         f"--rootdir={copy}", f"--config-file={copy / 'pytest.ini'}"],
        plugins=[plugin],
    )
    told = _told(plugin, int(code), copy)
    os.write(writer, json.dumps(told).encode())
  except BaseException:  # pylint: disable=broad-exception-caught
    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _told(plugin: _Plugin, code: int, copy: pathlib.Path) -> dict[str, str]:
  package = sys.modules.get(PACKAGE)
  if package is not None and copy not in pathlib.Path(package.__file__).parents:
    raise RuntimeError(f"the tests ran on {package.__file__}, not on {copy}.")
  status = {0: "survived", 1: "caught"}.get(code, "broken")
  reason = plugin.reason
  if plugin.uncollected:
    status = "broken"
    reason = plugin.uncollected.splitlines()[-1][:200]
  return {"status": status, "test": plugin.test, "reason": reason}
