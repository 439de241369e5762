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
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "jaxrl_llm"
COPIED = (PACKAGE, "configs", "tests", "pytest.ini")
STAGES = ("near", "rest")
# Tests that speak of each module, telling ones first; they meet its mutants
# before all others do.
NEAR = {
    "adaptive": ("bounds", "golden_regions", "golden"),
    "advantages": ("advantages", "token_advantages", "golden"),
    "algorithms": ("description", "golden", "requirements"),
    "budgets": ("golden_regions", "diagnostics", "bounds", "detached"),
    "corrections": ("golden_corrections", "bounds", "description", "cases"),
    "description": ("description", "spec"),
    "diagnostics": ("diagnostics", "cases", "detached"),
    "divergences": ("divergences", "golden_topk", "detached"),
    "kernels": ("kernels", "masked"),
    "masked": ("masked", "cases", "bounds"),
    "objective": ("requirements", "regularizers", "cases", "detached",
                  "advantages", "golden_corrections", "diagnostics", "value"),
    "parts": ("description", "spec"),
    "preference": ("preference",),
    "ratios": ("golden_regions", "golden_topk", "bounds", "golden", "cases"),
    "regularizers": ("regularizers",),
    "spec": ("spec", "description"),
    "supervised": ("supervised",),
    "surrogates": ("cases", "detached", "golden"),
    "token_advantages": ("token_advantages", "advantages"),
    "tokens": ("bounds", "detached", "golden_corrections", "golden",
               "golden_topk", "supervised"),
    "trust_regions": ("diagnostics", "bounds", "golden_regions", "detached",
                      "golden"),
    "validation": ("description", "spec"),
    "value": ("value",),
}
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
  """Orders the tests and remembers the first that failed."""

  def __init__(self, chosen: Callable[[str], bool], order: Callable):
    self._chosen, self._order = chosen, order
    self.test = self.reason = self.uncollected = ""

  def pytest_collection_modifyitems(self, config, items):
    out = [i for i in items if not self._chosen(i.nodeid)]
    config.hook.pytest_deselected(items=out)
    kept = [i for i in items if self._chosen(i.nodeid)]
    items[:] = sorted(kept, key=lambda i: self._order(i.nodeid))

  def pytest_collectreport(self, report):
    if report.failed:
      self.uncollected = self.uncollected or str(report.longrepr)

  def pytest_runtest_logreport(self, report):
    if report.failed and not self.test:
      self.test = report.nodeid
      crash = getattr(report.longrepr, "reprcrash", None)
      text = crash.message if crash else str(report.longrepr)
      self.reason = (text.splitlines() or [""])[0][:200]


def tests_of(module: str, stage: str) -> tuple[list[str], _Plugin]:
  """(files, plugin): the tests that a stage runs for a module's mutants."""
  near = [f"tests/losses/{name}_test.py" for name in NEAR.get(module, ())]
  is_near = lambda test: (
      test.split("::")[0] in near and not test.endswith("float32]")
  )
  if stage == "near":
    order = lambda test: near.index(test.split("::")[0])
    return near, _Plugin(is_near, order)
  return ["tests/losses"], _Plugin(
      lambda test: not is_near(test), lambda _: 0
  )


def judge(
    copy: pathlib.Path, tests: list[str], plugin: _Plugin, first: list[str],
    log: pathlib.Path,
) -> Verdict:
  """Runs tests on the copy as it stands, up to a failure.

  Args:
    copy: from `fresh_copy`, perhaps with a mutant in it.
    tests: files or tests.
    plugin: which of them, in which order.
    first: tests to run on their own before.
    log: takes what the tests print.
  """
  began = time.monotonic()
  reader, writer = os.pipe()
  child = os.fork()
  if not child:
    os.close(reader)
    _child(copy, [first, tests] if first else [tests], plugin, log, writer)
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


def passes(copy: pathlib.Path, test: str, log: pathlib.Path) -> bool:
  """Whether one test passes on the copy."""
  plugin = _Plugin(lambda _: True, lambda _: 0)
  return judge(copy, [test], plugin, [], log).status == "survived"


def _child(copy, rounds, plugin, log, writer) -> None:
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
    for tests in rounds:
      code = pytest.main(
          [*tests, "-x", "-q", "--tb=short", "-p", "no:cacheprovider",
           f"--rootdir={copy}", f"--config-file={copy / 'pytest.ini'}"],
          plugins=[plugin],
      )
      if code == pytest.ExitCode.TESTS_FAILED:
        break
    os.write(writer, json.dumps(_told(plugin, int(code), copy)).encode())
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
