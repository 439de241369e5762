"""Measures generation and training beside peers, by turns in one run.

Command: .venv/bin/python experiments/benchmarks/speed.py
  [--only=NAME ...] [--peers=DIR] [--repeats=3] [--model=PATH.gguf]
  [--folder=runs/speed] [--list]
Hardware: 2 CPU cores, 16 GiB of memory; about 30 minutes with peers.
Expect: one JSON line per job and program: tokens/s (median), share of the
  machine's limit for that work, peak memory, seconds of the first time (with
  compiling); then how many times the peers' speed that is.

peers.sh makes DIR, an environment with transformers and torch; without --peers
this package is measured alone. All programs read the same weights and do the
same jobs on random token ids; only ratios within a run mean something. The
limit of decoding is to read the weights once a step from memory, that of
training the matrix unit: both measured in the same run, by `limits`.
"""

import argparse
import json
import pathlib
import sys

import turns

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import settings as settings_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GENERATE = {"work": "generate", "samples": 1, "prompt": 64, "new": 128}
JOBS = {
    "generate 16": _GENERATE | {"prompts": 16, "slots": 16},
    "generate 64": _GENERATE | {"prompts": 64, "slots": 64},
    "generate 8 x 8, sampled": _GENERATE
    | {"prompts": 8, "samples": 8, "slots": 64, "temperature": 1.0},
    "train 8 x 256": {"work": "train", "rows": 8, "tokens": 256},
}


def exported(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Writes the weights as a Hugging Face folder, once."""
  place = folder / "model"
  if not place.is_dir():
    settings = settings_lib.ModelSettings(str(model), "", "", "bfloat16", "none")
    policy, params = policy_lib.load(str(model), settings)
    policy_lib.save(place, policy, params, {}, dtype="bfloat16")
  return place


def limit(job: turns.Job, measured: dict, parameters: int) -> float:
  """Tokens per second that the machine allows.

  Args:
    job: of JOBS.
    measured: of the job `limits`.
    parameters: of the model.
  """
  if job["work"] == "train":
    return measured["gflops"] * 1e9 / (6 * parameters)
  rows = min(job["slots"], job["prompts"] * job["samples"])
  by_memory = rows * measured["gbytes"] * 1e9 / (2 * parameters)
  return min(by_memory, measured["gflops"] * 1e9 / (2 * parameters))


def main() -> int:
  """Runs the jobs that the flags ask for."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--only", nargs="+", choices=JOBS)
  parser.add_argument("--list", action="store_true")
  parser.add_argument("--peers", type=pathlib.Path)
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--model", type=pathlib.Path, default=MODEL)
  parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs/speed")
  asked = parser.parse_args()
  if asked.list:
    print("\n".join(JOBS))
    return 0
  place = str(exported(asked.model, asked.folder))
  parameters = 134_515_008
  programs = [
      turns.Program(
          "jaxrl_llm",
          [sys.executable, str(turns.FOLDER / "worker_ours.py"), place],
          PYTHONPATH=str(ROOT),
      )
  ]
  if asked.peers:
    worker = str(turns.FOLDER / "worker_transformers.py")
    python = str(asked.peers / "bin/python")
    for dtype in ("bfloat16", "float32"):
      programs.append(
          turns.Program(f"transformers {dtype}", [python, worker, place, dtype])
      )
  measured = turns.compare(
      programs[:1], {"work": "limits"}, asked.repeats
  )["jaxrl_llm"]
  print(json.dumps({"limits": measured}), flush=True)
  for name in asked.only or JOBS:
    job = JOBS[name]
    found = turns.compare(programs, job, asked.repeats)
    rates = {}
    for program, result in found.items():
      rates[program] = result["tokens"] / result["seconds"]
      line = {
          "job": name, "program": program,
          "tokens_per_second": round(rates[program], 1),
          "of_limit": round(rates[program] / limit(job, measured, parameters), 3),
          **{k: v for k, v in result.items() if k != "tokens"},
      }
      print(json.dumps(line), flush=True)
    for program, rate in list(rates.items())[1:]:
      print(json.dumps({
          "job": name,
          f"times {program}": round(rates["jaxrl_llm"] / rate, 2),
      }), flush=True)
  for program in programs:
    program.close()
  return 0


if __name__ == "__main__":
  sys.exit(main())
