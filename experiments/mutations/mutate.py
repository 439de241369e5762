"""Changes the losses in one place at a time and asks whether the tests see it.

Command: .venv/bin/python -m experiments.mutations.mutate [--list]
  [--summary] [--only OPERATOR ...] [--file NAME ...] [--unexplained]
  [--sample=N --seed=S] [--again] [--folder=runs/mutations]
Hardware: one CPU core.
Expect: one line per mutant, then a table of mutants, caught and survivors by
  operator, then the survivors, each explained in SURVIVORS.md.

The checkout is never touched: mutants live in FOLDER/copy. Every mutant meets
the tests that speak of its module; those that pass them meet the rest in a
second pass. A test catches a mutant only if it passes on the unchanged copy.
FOLDER/results.jsonl keeps one line per mutant and stage, so a run that was
stopped goes on where it was, and --summary tells how far it came; --again
forgets what survived, for use after a test was added; --unexplained leaves out
what SURVIVORS.md explains. A mutant that cannot be imported is broken and
counts neither way.
"""

import argparse
import collections
import dataclasses
import hashlib
import json
import pathlib
import random
import re
import sys

from experiments.mutations import operators
from experiments.mutations import source as source_lib
from experiments.mutations import worker

MUTATED = "jaxrl_llm/losses"
UNCHANGED = "unchanged"
SURVIVORS = pathlib.Path(__file__).with_name("SURVIVORS.md")
Mutant = source_lib.Mutant
# Tests that begin a run: those that caught the nearest mutants.
NEAREST = 3


class Results:
  """Lines by mutant and stage, kept in a file."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._lines = {}
    if path.exists():
      for line in path.read_text().splitlines():
        record = json.loads(line)
        self._lines[record["mutant"], record["stage"]] = record

  def find(self, name: str, stage: str, digest: str) -> dict | None:
    """The line of a mutant of the source with this digest, if any."""
    record = self._lines.get((name, stage))
    return record if record and record["digest"] == digest else None

  def add(self, record: dict) -> None:
    self._lines[record["mutant"], record["stage"]] = record
    with self._path.open("a") as file:
      file.write(json.dumps(record, ensure_ascii=False) + "\n")

  def forget_survivors(self) -> None:
    self._lines = {
        (name, stage): record
        for (name, stage), record in self._lines.items()
        if record["status"] != "survived"
    }

  def catchers(self, mutant: Mutant, stage: str) -> list[str]:
    """Tests that caught the nearest mutants of the file, nearest first."""
    near = sorted(
        (abs(record["line"] - mutant.line), record["test"])
        for (_, of_stage), record in self._lines.items()
        if record["path"] == mutant.path and record["status"] == "caught"
        and of_stage == stage
    )
    return list(dict.fromkeys(test for _, test in near))[:NEAREST]


def digest(path: pathlib.Path) -> str:
  """Hash of a file, or of all Python and JSON files of a folder."""
  files = [path] if path.is_file() else sorted(
      p for p in path.rglob("*") if p.suffix in (".py", ".json")
  )
  found = hashlib.sha256(b"".join(p.read_bytes() for p in files))
  return found.hexdigest()[:12]


def choose(asked: argparse.Namespace) -> list[Mutant]:
  """The mutants that the flags ask for."""
  found = []
  for path in sorted((worker.ROOT / MUTATED).glob("*.py")):
    if not asked.file or path.stem in asked.file or path.name in asked.file:
      name = str(path.relative_to(worker.ROOT))
      found += operators.mutants(name, path.read_bytes())
  if asked.only:
    found = [m for m in found if m.operator in asked.only]
  if asked.unexplained:
    found = [m for m in found if not explained(m)]
  if asked.sample is not None:
    count = min(asked.sample, len(found))
    found = random.Random(asked.seed).sample(found, count)
  return found


def check_unchanged(
    test: str, copy: pathlib.Path, results: Results, log: pathlib.Path
) -> None:
  """Raises RuntimeError unless the test passes on the unchanged copy."""
  name = f"{UNCHANGED} {test}"
  file = copy / test.split("::")[0]
  state = f"{digest(copy / worker.PACKAGE)}-{digest(file)}"
  if results.find(name, "", state):
    return
  if not worker.passes(copy, test, log):
    raise RuntimeError(
        f"{test} fails on the unchanged package too; mend it first, see {log}."
    )
  results.add({
      "mutant": name, "path": "", "line": 0, "stage": "", "digest": state,
      "status": "passed", "test": test,
  })


def _record(name, path, line, stage, state, verdict) -> dict:
  return {
      "mutant": name, "path": path, "line": line, "stage": stage,
      "digest": state, **dataclasses.asdict(verdict),
  }


def _say(record: dict) -> None:
  by = f" by {record['test'].split('::')[-1]}" if record["test"] else ""
  print(
      f"{record['status']:8} {record['stage']} {record['seconds']:.0f} s"
      f" (cpu {record['cpu']:.1f} s): {record['mutant']}{by}", flush=True,
  )


def study(
    mutants: list[Mutant], copy: pathlib.Path, results: Results,
    log: pathlib.Path,
) -> None:
  """Judges every mutant that has no result yet, stage by stage."""
  for stage in worker.STAGES:
    survivors = []
    for mutant in mutants:
      state = digest(copy / mutant.path)
      record = results.find(mutant.name, stage, state)
      if record is None:
        verdict = _judge(mutant, stage, copy, results, log)
        if verdict.status == "caught":
          check_unchanged(verdict.test, copy, results, log)
        record = _record(
            mutant.name, mutant.path, mutant.line, stage, state, verdict
        )
        results.add(record)
        _say(record)
      if record["status"] == "survived":
        survivors.append(mutant)
    mutants = survivors


def _judge(
    mutant: Mutant, stage: str, copy: pathlib.Path, results: Results,
    log: pathlib.Path,
) -> worker.Verdict:
  """Runs a stage on the copy with the mutant in it, then takes it out."""
  place = copy / mutant.path
  content = place.read_bytes()
  tests, plugin = worker.tests_of(place.stem, stage)
  first = results.catchers(mutant, stage)
  try:
    place.write_bytes(mutant.apply(content))
    return worker.judge(copy, tests, plugin, first, log)
  finally:
    place.write_bytes(content)


def explained(mutant: Mutant) -> bool:
  """Whether SURVIVORS.md says why the mutant changes no value."""
  name = re.sub(r":\d+:\d+ ", " ", mutant.name.removeprefix(f"{MUTATED}/"), 1)
  return f"- `{name}`\n" in SURVIVORS.read_text()


def summary(mutants: list[Mutant], results: Results) -> str:
  """Table by operator of what has been judged so far."""
  counts = collections.defaultdict(collections.Counter)
  spent = collections.Counter()
  survivors = []
  for mutant in mutants:
    state = digest(worker.ROOT / mutant.path)
    status = "unjudged"
    for stage in worker.STAGES:
      record = results.find(mutant.name, stage, state)
      if record is None:
        status = "unjudged" if stage == "near" else "near only"
        break
      spent["seconds"] += record["seconds"]
      spent["cpu"] += record["cpu"]
      status = record["status"]
      if status != "survived":
        break
    counts[mutant.operator][status] += 1
    if status in ("survived", "near only"):
      known = "explained" if explained(mutant) else "NOT EXPLAINED"
      survivors.append(f"{status}, {known}: {mutant.name}")
  kinds = ("caught", "survived", "near only", "broken", "unjudged")
  total = sum(counts.values(), collections.Counter())
  rows = [f"{'operator':14}" + "".join(f"{k:>10}" for k in kinds)]
  for name, row in [*sorted(counts.items()), ("all", total)]:
    rows.append(f"{name:14}" + "".join(f"{row[k]:>10}" for k in kinds))
  judged = total["caught"] + total["survived"] + total["near only"]
  if judged:
    rows.append(
        f"caught {total['caught']} of {judged}"
        f" ({100 * total['caught'] / judged:.1f} %),"
        f" {spent['seconds'] / judged:.1f} s and"
        f" {spent['cpu'] / judged:.1f} s of CPU per mutant"
    )
  return "\n".join(rows + survivors)


def main() -> int:
  """Lists or judges the mutants that the flags ask for."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--list", action="store_true")
  parser.add_argument("--summary", action="store_true")
  parser.add_argument("--only", nargs="+", choices=tuple(operators.OPERATORS))
  parser.add_argument("--file", nargs="+")
  parser.add_argument("--sample", type=int)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--unexplained", action="store_true")
  parser.add_argument("--again", action="store_true")
  parser.add_argument(
      "--folder", type=pathlib.Path, default=worker.ROOT / "runs/mutations"
  )
  asked = parser.parse_args()
  mutants = choose(asked)
  if not mutants:
    parser.error("no such mutants; see --list.")
  if asked.list:
    print("\n".join(mutant.name for mutant in mutants))
    for name, count in collections.Counter(
        mutant.operator for mutant in mutants
    ).most_common():
      print(f"{name:14} {count:5}")
    return 0
  folder = asked.folder.resolve()
  results = Results(folder / "results.jsonl")
  if asked.again:
    results.forget_survivors()
  if not asked.summary:
    worker.warm()
    copy = worker.fresh_copy(folder)
    study(mutants, copy, results, folder / "tests.log")
  print(summary(mutants, results))
  return 0


if __name__ == "__main__":
  sys.exit(main())
