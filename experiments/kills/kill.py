"""Kills `generate` and `train` at random moments and compares what they leave.

Command: .venv/bin/python experiments/kills/kill.py [--kills=20] [--seed=0]
  [--folder=runs/kills]
Hardware: 2 CPU cores.
Expect: one line per kill, then `generate: … identical` and `train: …
  identical`; exit code 1 when a byte or a bit differs.

An uninterrupted job is the reference. Every other job is killed with SIGKILL
after a random share of the reference's time and started again, until it has
ended; new jobs are begun until enough kills have struck.
"""

import argparse
import hashlib
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import checkpoints

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = 3
COMMON = (
    f"--config={ROOT / 'configs/tiny.py'}",
    "--config.generation.prompts_per_round=64",
    "--config.train.checkpoint_every=2",
    "--config.train.keep_uniform_groups=True",
    f"--config.seed={SEED}",
)


def start(verb: str, workdir: pathlib.Path, *flags: str) -> subprocess.Popen:
  """Starts a verb in a process of its own, without output."""
  return subprocess.Popen(
      [sys.executable, "-m", "jaxrl_llm", verb, *COMMON, *flags,
       f"--workdir={workdir}"],
      cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
  )


def finish(process: subprocess.Popen) -> None:
  """Waits for a process; raises RuntimeError when it failed."""
  if process.wait():
    raise RuntimeError(
        f"{' '.join(process.args)}: expected exit code 0, found"
        f" {process.returncode}; run it by hand to see why."
    )


def shards_digest(workdir: pathlib.Path) -> str:
  """Hashes the names and bytes of all files under rollouts/."""
  digest = hashlib.sha256()
  for path in sorted((workdir / "rollouts").rglob("*")):
    if path.is_file():
      digest.update(str(path.relative_to(workdir)).encode())
      digest.update(path.read_bytes())
  return digest.hexdigest()


def parameters_digest(workdir: pathlib.Path) -> str:
  """Hashes the bits of the parameters of the latest checkpoint.

  Raises:
    RuntimeError: they are those that the run began with.
  """
  policy = policy_lib.Policy(policy_lib.preset("tiny"))
  path = checkpoints.latest(workdir / "checkpoints")
  params = checkpoints.restore_params(path, policy.shapes)
  digest = hashlib.sha256(path.name.encode())
  for leaf in jax.tree.leaves(params):
    digest.update(np.asarray(leaf).tobytes())
  first = policy.init(jax.random.key(SEED))
  moved = jax.tree.map(lambda a, b: np.any(a != b), params, first)
  if not all(jax.tree.leaves(moved)):
    raise RuntimeError(f"{path}: some parameters are as at the start.")
  return digest.hexdigest()


def study(
    verb: str, flags: tuple[str, ...], digest, folder: pathlib.Path,
    kills: int, rng: random.Random,
) -> bool:
  """Compares interrupted jobs of a verb with one that ran through."""
  whole = folder / f"{verb}_whole"
  finish(start(verb, whole, *flags))  # Fills the compilation cache.
  cache = whole / "compilation_cache"
  kept = folder / f"{verb}_cache"
  shutil.copytree(cache, kept, dirs_exist_ok=True)
  expected = digest(whole)
  shutil.rmtree(whole)
  shutil.copytree(kept, cache)
  began = time.monotonic()
  finish(start(verb, whole, *flags))
  seconds = time.monotonic() - began
  same = digest(whole) == expected
  struck = jobs = 0
  while struck < kills:
    workdir = folder / f"{verb}_{jobs}"
    shutil.copytree(kept, workdir / "compilation_cache")
    jobs += 1
    while struck < kills:
      process = start(verb, workdir, *flags)
      moment = rng.uniform(0, seconds)
      try:
        process.wait(timeout=moment)
        break
      except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        struck += 1
        print(f"{verb}: kill {struck} after {moment:.1f} s", flush=True)
    finish(start(verb, workdir, *flags))
    same = same and digest(workdir) == expected
  verdict = "identical" if same else "DIFFERENT"
  print(f"{verb}: {struck} kills, {jobs + 2} jobs, {verdict}", flush=True)
  return same


def main() -> int:
  """Runs both studies; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--kills", type=int, default=20)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument(
      "--folder", type=pathlib.Path, default=ROOT / "runs/kills"
  )
  asked = parser.parse_args()
  folder = asked.folder.resolve()
  if folder.exists():
    parser.error(f"{folder} exists; delete it or name another --folder.")
  rng = random.Random(asked.seed)
  frozen = folder / "generate_whole/rollouts"
  same = [
      study("generate", (), shards_digest, folder, asked.kills, rng),
      study(
          "train", (f"--config.train.rollouts={frozen}",), parameters_digest,
          folder, asked.kills, rng,
      ),
  ]
  return 0 if all(same) else 1


if __name__ == "__main__":
  sys.exit(main())
