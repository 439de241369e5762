"""What objectives make of rollouts that are up to sixteen rounds old.

Command: .venv/bin/python -m experiments.staleness.study [--lags=0,1,2,4,8,16]
  [--seeds=0,1,2] [--objectives=NAMES] [--folder=runs/staleness_study]
  [--record]
Hardware: 2 CPU cores.
Expect: the tables of the verb `staleness` and its picture; with --record they
  are copied beside this file as well. Killed and started again it goes on.

A question is a letter, which has an answer of four digits, and a letter that
says nothing; 24 of the 32 are trained on, 8 held out. All seeds begin with one
policy, which imitated demonstrations of which 40 % were right; a seed is a
repetition of everything after it: the rounds that write the shards, the order
of training, the noise of sampling and evaluation. Every round poses all 24
questions, so shards of two lags differ in the age of their policy alone.
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import sys

import numpy as np

from experiments.ippo import planted_noise
from jaxrl_llm import __main__ as door
from jaxrl_llm import types
from jaxrl_llm.data import byte_tokenizer
from jaxrl_llm.verbs import staleness

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = HERE / "config.py"
LETTERS, FILLERS, DIGITS = "abcdefgh", "wxyz", 4
# Share of the demonstrations that the start policy imitates and are right.
RIGHT = 0.4
# A demonstration is imitated so often.
EPOCHS = 40


def call(verb: str, workdir: pathlib.Path, *words: str) -> None:
  """Calls a verb.

  Raises:
    RuntimeError: it failed.
  """
  code = door.main(
      [verb, f"--config={CONFIG}", f"--workdir={workdir}", *words]
  )
  if code:
    raise RuntimeError(f"{verb}: expected exit code 0, found {code}.")


def write_problems(path: pathlib.Path) -> None:
  """Writes all questions with their answers, the same at every call."""
  draw = np.random.default_rng(0)
  answers = draw.permutation(np.arange(10 ** (DIGITS - 1), 10**DIGITS))
  lines = [
      json.dumps({"question": letter + filler, "answer": str(answer)}) + "\n"
      for letter, answer in zip(LETTERS, answers)
      for filler in FILLERS
  ]
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(lines))


def demonstrate(
    rollout: types.Rollout, draw: np.random.Generator
) -> types.Rollout:
  """Puts the answer, or another number, in the place of a response."""
  text = rollout.reference_answer
  if draw.random() >= RIGHT:
    text = str(draw.integers(10 ** (DIGITS - 1), 10**DIGITS))
  tokens = np.array([*text.encode(), byte_tokenizer.EOS_ID], np.int32)
  size = tokens.size
  return planted_noise.with_reward(
      dataclasses.replace(
          rollout,
          response_tokens=tokens,
          response_mask=np.ones(size, bool),
          behavior_logprobs=np.zeros(size, np.float32),
          log_kept_mass=np.zeros(size, np.float32),
          policy_versions=np.zeros(size, np.int32),
          topk_ids=np.zeros((size, 0), np.int32),
          topk_logprobs=np.zeros((size, 0), np.float32),
          finish_reason="stop",
          response_text=text,
      ),
      1.0,
  )


def make_start(folder: pathlib.Path, problems: str) -> pathlib.Path:
  """Trains a random model on demonstrations; returns its folder."""
  model = folder / "model"
  if model.is_dir():
    return model
  workdir = folder / "start"
  shutil.rmtree(workdir, ignore_errors=True)
  draw = np.random.default_rng(1)
  words = [
      problems,
      "--config.objective.name=sft",
      "--config.sampling.record_topk=0",
      f"--config.train.epochs={EPOCHS}",
      "--config.train.learning_rate=3e-3",
  ]
  call("generate", workdir, *words)
  planted_noise.rewrite(workdir, 0, lambda one: demonstrate(one, draw))
  call("train", workdir, *words)
  beside = folder / "model.beside"
  shutil.rmtree(beside, ignore_errors=True)
  call("export", workdir, *words, f"--config.export.folder={beside}")
  return beside.rename(model)


def main() -> int:
  """Runs the study; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--lags")
  parser.add_argument("--seeds")
  parser.add_argument("--objectives")
  parser.add_argument("--record", action="store_true")
  parser.add_argument(
      "--folder", type=pathlib.Path, default="runs/staleness_study"
  )
  asked = parser.parse_args()
  file = asked.folder / "problems.jsonl"
  write_problems(file)
  problems = f"--config.prompts.path={file}"
  model = make_start(asked.folder, problems)
  words = [problems, f"--config.model.path={model}"]
  for name in ("lags", "seeds", "objectives"):
    value = getattr(asked, name)
    if value:
      value = value if name == "objectives" else f"({value},)"
      words.append(f"--config.lab.{name}={value}")
  call("staleness", asked.folder / "study", *words)
  if asked.record:
    for name in (staleness.RESULT, staleness.TEXT, staleness.PICTURE):
      shutil.copy(asked.folder / "study" / name, HERE / name)
  return 0


if __name__ == "__main__":
  sys.exit(main())
