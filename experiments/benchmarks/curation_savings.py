"""Measures what steps of curation save of an update's time.

Command: .venv/bin/python experiments/benchmarks/curation_savings.py
  [--config=configs/quickstart.py] [--repeats=2] [--folder=runs/savings]
  [-- --config.key=value ...]
Hardware: 2 CPU cores, 8 GiB of memory; about 10 minutes.
Expect: one JSON line per step of curation: the share of responses and of the
  rows' tokens that an update computes, seconds per update (median, without the
  first), tokens computed per second, and `rollout_tokens_per_second`: tokens of
  the whole mini-batch, pruned ones included, per second; its ratio to that of
  `none` is what the step saves. Exit code 1 when a step saves nothing.

One round of rollouts serves all. The steps take turns, each in a process and a
working directory of its own.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

from jaxrl_llm.training import metrics

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = ("none", "cppo_completion", "dppo_pruning", "ps_ppo")
# Small micro-batches, so that what is saved is not lost to their rounding.
SHAPE = {"train.rows_per_microbatch": 1, "train.checkpoint_every": 1000}


def call(verb: str, workdir: pathlib.Path, words: list[str]) -> None:
  """Runs a verb; its output goes to this program's error stream."""
  subprocess.run(
      [sys.executable, "-m", "jaxrl_llm", verb, *words, f"--workdir={workdir}"],
      check=True, cwd=ROOT, stdout=sys.stderr,
  )


def flags(keys: dict[str, object]) -> list[str]:
  return [f"--config.{name}={value}" for name, value in keys.items()]


def updates(workdir: pathlib.Path) -> list[dict[str, float]]:
  """Returns the updates of a run but for the first, which compiles."""
  records = metrics.read(workdir / "metrics.jsonl")
  return [record for record in records if record["kind"] == "update"][1:]


def described(found: list[dict[str, float]]) -> dict[str, float]:
  """Returns medians over updates."""
  rows = []
  for update in found:
    left = 1.0 - update.get("curation/saved_token_share", 0.0)
    rows.append({
        "responses_kept": update.get("curation/survivor_share", 1.0),
        "tokens_kept": left,
        "seconds": update["row_tokens"] / update["tokens_per_second"],
        "tokens_per_second": update["tokens_per_second"],
        "rollout_tokens_per_second": update["tokens_per_second"] / left,
    })
  return {
      name: round(statistics.median(row[name] for row in rows), 4)
      for name in rows[0]
  }


def main() -> int:
  """Generates once, trains under each step by turns, prints the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", default="configs/quickstart.py")
  parser.add_argument("--repeats", type=int, default=2)
  parser.add_argument(
      "--folder", type=pathlib.Path, default=ROOT / "runs/savings"
  )
  parser.add_argument("words", nargs="*")
  asked = parser.parse_args()
  shutil.rmtree(asked.folder, ignore_errors=True)
  common = [f"--config={asked.config}", *flags(SHAPE), *asked.words]
  call("generate", asked.folder / "rollouts", common)
  frozen = {"train.rollouts": asked.folder / "rollouts/rollouts"}
  found = {name: [] for name in STEPS}
  for number in range(asked.repeats):
    for name in STEPS:
      workdir = asked.folder / f"{name}_{number}"
      chosen = frozen | {"curation.name": name}
      call("train", workdir, [*common, *flags(chosen)])
      found[name] += updates(workdir)
  table = {name: described(rows) for name, rows in found.items()}
  plain = table["none"]["rollout_tokens_per_second"]
  for name, row in table.items():
    gain = row["rollout_tokens_per_second"] / plain
    print(json.dumps({"curation": name, **row, "times_none": round(gain, 2)}))
  slowest = min(
      row["rollout_tokens_per_second"]
      for name, row in table.items() if name != "none"
  )
  return int(slowest <= plain)


if __name__ == "__main__":
  sys.exit(main())
