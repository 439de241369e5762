"""Measures generation and training beside peers, by turns in one run.

Command: .venv/bin/python experiments/benchmarks/speed.py
  [--only NAME ...] [--peers=DIR] [--variants NAME ...] [--repeats=3]
  [--model=PATH.gguf] [--folder=runs/speed] [--list]
Hardware: 2 CPU cores; all programs of a job are in memory at once, 16 GiB for
  generation and 24 GiB for training with --variants bfloat16.
Expect: one JSON line per job and program: tokens/s (median), share of the
  machine's limit for that work, peak memory of the process, seconds of the
  first time (with starting, loading and compiling); then how many times each
  peer's speed that of this package is.

peers.sh makes DIR, an environment for each peer; without --peers this package
is measured alone. All programs read the same weights and do the same jobs on
random token ids, no response ends early, and each job begins with new
processes; only ratios within a run mean something. The limit of decoding is to
read bfloat16 weights once a step from memory, that of training the matrix
unit: both measured in the same run, by `limits`. A `step` is a whole one of
GRPO, and its tokens are those drawn.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import json
import pathlib
import sys

import turns

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import settings as settings_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PARAMETERS = 134_515_008
_GENERATE = {"work": "generate", "samples": 1, "prompt": 64, "new": 128}
JOBS = {
    "generate 16": _GENERATE | {"prompts": 16, "slots": 16},
    "generate 64": _GENERATE | {"prompts": 64, "slots": 64},
    "generate 8 x 8, sampled": _GENERATE
    | {"prompts": 8, "samples": 8, "slots": 64, "temperature": 1.0},
    # The same tokens and prompts: all of one length, and spread 8 … 256.
    "even 256": _GENERATE | {"prompts": 256, "slots": 32, "new": 132},
    "spread 256": _GENERATE
    | {"prompts": 256, "slots": 32, "new": 256, "shortest": 8},
    "train 8 x 256": {"work": "train", "rows": 8, "tokens": 256},
    "step 2 x 8": _GENERATE
    | {"work": "step", "prompts": 2, "samples": 8, "slots": 16},
}
_GREEDY = ("generate 16", "generate 64")
_GENERATING = (*_GREEDY, "generate 8 x 8, sampled")


@dataclasses.dataclass(frozen=True)
class Peer:
  """A peer, and what it can do.

  Attributes:
    environment: folder below that of peers.sh, and the end of the name of its
      program.
    variant: the last argument of its program.
    jobs: names in JOBS.
  """

  environment: str
  variant: str
  jobs: tuple[str, ...]


PEERS = tuple(
    Peer(environment, dtype, jobs)
    for environment, jobs in {
        "transformers": (*_GENERATING, "train 8 x 256"),
        "tunix": (*_GENERATING, "train 8 x 256", "step 2 x 8"),
        "trl": ("step 2 x 8",),
    }.items()
    for dtype in ("bfloat16", "float32")
) + (Peer("llamacpp", "Q4_1", _GREEDY), Peer("llamacpp", "bfloat16", _GREEDY))


def exported(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Writes the weights as a Hugging Face folder, once."""
  place = folder / "model"
  if not place.is_dir():
    dtype = "bfloat16"
    settings = settings_lib.ModelSettings(str(model), "", "", dtype, "none")
    policy, params = policy_lib.load(str(model), settings)
    policy_lib.save(place, policy, params, {}, dtype=dtype)
  return place


def limit(job: turns.Job, measured: dict, parameters: int) -> float:
  """Tokens per second that the machine allows.

  Args:
    job: of JOBS.
    measured: of the job `limits`.
    parameters: of the model.
  """
  forward = measured["gflops"] * 1e9 / (2 * parameters)
  trained = forward / 3
  if job["work"] == "train":
    return trained
  rows = min(job["slots"], job["prompts"] * job["samples"])
  drawn = min(rows * measured["gbytes"] * 1e9 / (2 * parameters), forward)
  return drawn if job["work"] == "generate" else 1 / (1 / drawn + 1 / trained)


def ours(place: pathlib.Path) -> turns.Program:
  """This package, with weights of a Hugging Face folder."""
  worker = str(turns.FOLDER / "worker_ours.py")
  # As the command sets it for itself.
  pages = "glibc.malloc.hugetlb=1"
  return turns.Program(
      "jaxrl_llm",
      [sys.executable, worker, str(place)],
      PYTHONPATH=str(ROOT),
      GLIBC_TUNABLES=pages,
  )


def program(
    peer: Peer, peers: pathlib.Path, model: pathlib.Path, place: pathlib.Path
) -> turns.Program:
  """A peer's program.

  Args:
    peer: of PEERS.
    peers: folder that peers.sh made.
    model: .gguf file.
    place: its weights as a Hugging Face folder.
  """
  if peer.environment == "llamacpp":
    copy = place.with_suffix(".bfloat16.gguf")
    arguments = [model] if peer.variant == "Q4_1" else [model, copy]
  else:
    arguments = [place, peer.variant]
  python = peers / peer.environment / "bin/python"
  worker = turns.FOLDER / f"worker_{peer.environment}.py"
  return turns.Program(
      f"{peer.environment} {peer.variant}",
      [str(word) for word in (python, worker, *arguments)],
  )


def report(
    name: str, programs: Sequence[turns.Program], measured: dict, repeats: int
) -> None:
  """Does a job in programs, ours first, and prints what it took."""
  job = JOBS[name]
  found = turns.compare(programs, job, repeats)
  rates = {}
  for place, result in found.items():
    rates[place] = result.pop("tokens") / result["seconds"]
    bound = limit(job, measured, PARAMETERS)
    line = {
        "job": name,
        "program": place,
        "tokens_per_second": round(rates[place], 1),
        "of_limit": round(rates[place] / bound, 3),
    }
    print(json.dumps(line | result), flush=True)
  first, *others = rates
  for other in others:
    times = round(rates[first] / rates[other], 2)
    print(json.dumps({"job": name, f"times {other}": times}), flush=True)


def main() -> int:
  """Runs the jobs that the flags ask for."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--only", nargs="+", choices=JOBS)
  parser.add_argument("--list", action="store_true")
  parser.add_argument("--peers", type=pathlib.Path)
  variants = sorted({peer.variant for peer in PEERS})
  parser.add_argument(
      "--variants", nargs="+", choices=variants, default=variants
  )
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--model", type=pathlib.Path, default=MODEL)
  folder = ROOT / "runs/speed"
  parser.add_argument("--folder", type=pathlib.Path, default=folder)
  asked = parser.parse_args()
  if asked.list:
    print("\n".join(JOBS))
    return 0
  model, place = asked.model, exported(asked.model, asked.folder)
  package = ours(place)
  limits = turns.compare([package], {"work": "limits"}, asked.repeats)
  package.close()
  measured = limits["jaxrl_llm"]
  print(json.dumps({"limits": measured}), flush=True)
  for name in asked.only or JOBS:
    programs = [package] + [
        program(peer, asked.peers, model, place)
        for peer in PEERS
        if asked.peers
        and name in peer.jobs
        and peer.variant in asked.variants
    ]
    report(name, programs, measured, asked.repeats)
    for one in programs:
      one.close()
  return 0


if __name__ == "__main__":
  sys.exit(main())
