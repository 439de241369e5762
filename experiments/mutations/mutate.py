"""Changes the losses in one place at a time and asks whether the tests see it.

Command: .venv/bin/python -m experiments.mutations.mutate [--list]
  [--only=OPERATOR ...] [--file=NAME ...] [--sample=N --seed=S] [--again]
  [--folder=runs/mutations]
Hardware: one CPU core.
Expect: one line per mutant, then a table of mutants, caught and survivors by
  operator. SURVIVORS.md says why the survivors are what they are.

The checkout is never touched: mutants live in FOLDER/copy. The unchanged copy
has to pass first. Every mutant then meets the fast tests; those that pass them
meet the rest. FOLDER/results.jsonl keeps one line per mutant and stage, so a
run that was stopped goes on where it was; --again forgets what survived, for
use after a test was added.
"""

import argparse
import collections
import dataclasses
import hashlib
import json
import pathlib
import random
import sys

from experiments.mutations import operators
from experiments.mutations import source as source_lib
from experiments.mutations import worker

MUTATED = "jaxrl_llm/losses"
UNCHANGED = "unchanged"
Mutant = source_lib.Mutant
# Tests that begin a run: those that caught the nearest mutants.
NEAREST = 5


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
        if name == UNCHANGED or record["status"] != "survived"
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
  if asked.sample is not None:
    count = min(asked.sample, len(found))
    found = random.Random(asked.seed).sample(found, count)
  return found


def check_unchanged(
    copy: pathlib.Path, stage: str, results: Results, log: pathlib.Path
) -> None:
  """Raises RuntimeError unless the unchanged copy passes."""
  parts = (copy / worker.PACKAGE, copy / "tests/losses", copy / "tests/golden")
  state = "-".join(digest(part) for part in parts)
  record = results.find(UNCHANGED, stage, state)
  if record is None:
    verdict = worker.judge(copy, stage, [], log)
    record = _record(UNCHANGED, "", 0, stage, state, verdict)
    results.add(record)
  _say(record)
  if record["status"] != "survived":
    raise RuntimeError(
        f"the unchanged package fails {record['test']}: {record['reason']};"
        f" mend it first, see {log}."
    )


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
  passed = mutants
  for stage in worker.STAGES:
    if passed:
      check_unchanged(copy, stage, results, log)
    survivors = []
    for mutant in passed:
      place = copy / mutant.path
      state = digest(place)
      record = results.find(mutant.name, stage, state)
      if record is None:
        content = place.read_bytes()
        first = results.catchers(mutant, stage)
        try:
          place.write_bytes(mutant.apply(content))
          verdict = worker.judge(copy, stage, first, log)
        finally:
          place.write_bytes(content)
        record = _record(
            mutant.name, mutant.path, mutant.line, stage, state, verdict
        )
        results.add(record)
        _say(record)
      if record["status"] == "survived":
        survivors.append(mutant)
    passed = survivors


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
        status = "unjudged" if stage == "fast" else "fast only"
        break
      spent["seconds"] += record["seconds"]
      spent["cpu"] += record["cpu"]
      status = record["status"]
      if status != "survived":
        break
    counts[mutant.operator][status] += 1
    if status in ("survived", "fast only"):
      survivors.append(f"{status}: {mutant.name}")
  kinds = ("caught", "survived", "fast only", "broken", "unjudged")
  total = sum(counts.values(), collections.Counter())
  rows = [f"{'operator':14}" + "".join(f"{k:>10}" for k in kinds)]
  for name, row in [*sorted(counts.items()), ("all", total)]:
    rows.append(f"{name:14}" + "".join(f"{row[k]:>10}" for k in kinds))
  judged = total["caught"] + total["survived"] + total["fast only"]
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
