"""Flips a known share of rewards and asks whether the influence filter sees it.

Command: .venv/bin/python experiments/ippo/planted_noise.py [--seeds=3]
  [--rounds=3] [--flipped=0.3] [--folder=runs/ippo]
Hardware: 2 CPU cores; about 5 minutes.
Expect: for each way of training, precision (flipped among removed) and recall
  (removed among flipped) of the filter, and the clean reward and the held-out
  accuracy at the end; then the statements that it checks. Exit code 1 when one
  of them fails. result.txt is what it printed.

A question is a letter that has an answer and one that says nothing; 24 of the
32 are trained on, 8 held out. All ways begin with one policy, which imitated
demonstrations of which 40 % were right, and sample their own rounds, as many
responses each; rewards are flipped after a round is generated, so that group
baselines are those of the noisy rewards. The validation records are sampled by
the first policy with another seed and keep their rewards: on the problems that
are trained on, or on those held out. The random filter drops each episode with
the probability that the filter by `sft` dropped with over the run, and so
spends as many tokens on updates; `plain` trains on all, and spends more. The
filter's own passes come on top: one forward with its tangent over each round,
and one backward over the validation records.

Episodes of groups with equal rewards are neither trained on nor counted.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import json
import pathlib
import shutil
import statistics
import sys

import numpy as np

from jaxrl_llm import __main__ as door
from jaxrl_llm import types
from jaxrl_llm.data import byte_tokenizer
from jaxrl_llm.data import shards
from jaxrl_llm.training import metrics
from jaxrl_llm.training import stored
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts

CONFIG = pathlib.Path(__file__).resolve().with_name("config.py")
# A question is one of eight letters, which has an answer, and one of four
# more, which say nothing.
LETTERS, FILLERS = "abcdefgh", "wxyz"
# Share of the demonstrations that the start policy imitates and are right.
RIGHT = 0.4
# |A| below which dppo_pruning drops at random: that of all.
ABOVE_ALL = 1e6
# What the filter reaches at least, in every seed, on the trained problems.
SHARP = 0.7
FILTERS = ("ippo, sft", "ippo, policy_gradient")
OTHERS = ("random filter", "plain")


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What one way of training came to.

  Attributes:
    reward: share of right responses to the trained problems, by round; the
      last entry is after all updates.
    held_out: share of right responses to other problems, at the end.
    removed: episodes of scored groups that got no weight: flipped, clean.
    scored: all episodes of those groups: flipped, clean.
    tokens: computed in the updates.
  """

  reward: Sequence[float]
  held_out: float
  removed: tuple[int, int]
  scored: tuple[int, int]
  tokens: int

  @property
  def precision(self) -> float:
    return self.removed[0] / max(sum(self.removed), 1)

  @property
  def recall(self) -> float:
    return self.removed[0] / self.scored[0]

  @property
  def removed_share(self) -> float:
    return sum(self.removed) / sum(self.scored)


def call(verb: str, workdir: pathlib.Path, *words: str) -> None:
  """Calls a verb, its output into a file.

  Raises:
    RuntimeError: it failed.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  log = workdir / "log.txt"
  with (
      log.open("a") as file,
      contextlib.redirect_stdout(file),
      contextlib.redirect_stderr(file),
  ):
    code = door.main(
        [verb, f"--config={CONFIG}", f"--workdir={workdir}", *words]
    )
  if code:
    raise RuntimeError(f"{verb}: expected exit code 0, found {code}; see {log}")


def rewrite(
    workdir: pathlib.Path,
    number: int,
    change: Callable[[types.Rollout], types.Rollout],
) -> list[types.Rollout]:
  """Changes the records of a round where they lie; returns the former ones."""
  place = folders.host_folder(workdir, number, 0)
  beside = place.with_name("clean")
  place.rename(beside)
  opened = shards.open_folder(beside)
  rollouts = [opened[n] for n in range(len(opened))]
  writer = shards.ShardWriter(place, opened.metadata, 1)
  writer.write(0, list(map(change, rollouts)))
  writer.finish()
  shutil.rmtree(beside)
  return rollouts


def with_reward(rollout: types.Rollout, reward: float) -> types.Rollout:
  parts_ = {**rollout.reward_parts, "correct": reward}
  return dataclasses.replace(rollout, reward=reward, reward_parts=parts_)


def write_problems(folder: pathlib.Path, seed: int) -> list[str]:
  """Writes all problems, and those held out of training apart.

  Returns:
    The flags that pose the former.
  """
  digits = np.random.default_rng((seed, 0)).permutation(10)
  lines = [
      json.dumps({"question": letter + filler, "answer": str(digit)}) + "\n"
      for letter, digit in zip(LETTERS, digits)
      for filler in FILLERS
  ]
  folder.mkdir(parents=True)
  (folder / "all.jsonl").write_text("".join(lines))
  words = [
      f"--config.prompts.path={folder / 'all.jsonl'}",
      "--config.prompts.answer_field=answer",
      f"--config.seed={seed}",
  ]
  config, _ = flags.parse("train", [f"--config={CONFIG}", *words])
  held_out = parts.prompts(config, parts.tokenizer(config))[1]
  chosen = [line for line in lines if any(p.text in line for p in held_out)]
  (folder / "other.jsonl").write_text("".join(chosen))
  return words


def make_start(folder: pathlib.Path, words: Sequence[str], seed: int) -> None:
  """Trains a random model on demonstrations of which some are right.

  With a reward of 1 for each, topr is the likelihood of the demonstrations.
  """
  draw = np.random.default_rng((seed, 1))
  workdir = folder / "start"

  def demonstrate(rollout):
    right = draw.random() < RIGHT
    text = rollout.reference_answer if right else str(draw.integers(10))
    tokens = np.array([ord(text), byte_tokenizer.EOS_ID], np.int32)
    return with_reward(
        dataclasses.replace(
            rollout,
            response_tokens=tokens,
            response_mask=np.ones(2, bool),
            behavior_logprobs=np.zeros(2, np.float32),
            log_kept_mass=np.zeros(2, np.float32),
            policy_versions=np.zeros(2, np.int32),
            topk_ids=np.zeros((2, 0), np.int32),
            topk_logprobs=np.zeros((2, 0), np.float32),
            finish_reason="stop",
            response_text=text,
        ),
        1.0,
    )

  words = [
      *words, "--config.objective.name=topr",
      "--config.objective.correction=", "--config.train.epochs=40",
      "--config.train.learning_rate=3e-3",
  ]
  call("generate", workdir, *words)
  rewrite(workdir, 0, demonstrate)
  call("train", workdir, *words)
  call("export", workdir, *words, f"--config.export.folder={folder / 'model'}")


def make_validation(folder: pathlib.Path, words: Sequence[str]) -> None:
  """Samples the start policy once more, on both kinds of problems, unflipped.

  The seed is another one, so that no response is trained on.
  """
  words = [*words, "--config.seed=1000"]
  call("generate", folder / "same", *words)
  call(
      "generate", folder / "other", *words,
      f"--config.prompts.path={folder / 'other.jsonl'}",
      "--config.prompts.eval_count=0",
      "--config.generation.prompts_per_round=8",
  )


def ippo(folder: pathlib.Path, loss: str, problems: str) -> list[str]:
  """Returns the flags of the filter."""
  return [
      "--config.curation.name=ippo",
      f"--config.curation.validation={loss}",
      f"--config.curation.validation_rollouts={folder / problems}",
  ]


def random_filter(share: float) -> list[str]:
  """Returns the flags that drop a share of all episodes at random."""
  return [
      "--config.curation.name=dppo_pruning",
      f"--config.curation.prune_threshold={ABOVE_ALL}",
      f"--config.curation.prune_probability={share}",
  ]


def train(
    workdir: pathlib.Path,
    words: Sequence[str],
    seed: int,
    rounds: int,
    flipped: float,
) -> Outcome:
  """Runs the rounds of one way of training, rewards flipped before each."""
  reward, removed, scored = [], np.zeros(2, int), np.zeros(2, int)
  for number in range(rounds + 1):
    call("generate", workdir, *words)
    draw = np.random.default_rng((seed, 2, number))
    flips = {}

    def flip(rollout):
      flips[rollout.record_id] = draw.random() < flipped
      turned = 1.0 - rollout.reward
      return with_reward(
          rollout, turned if flips[rollout.record_id] else rollout.reward
      )

    clean = rewrite(workdir, number, flip)
    reward.append(statistics.mean(rollout.reward for rollout in clean))
    if number == rounds:
      break
    call("train", workdir, *words)
    path = workdir / f"prepared/round_{number:04d}/batch_0000.npz"
    prepared = stored.load(path)
    terms = prepared.of(prepared.record_ids)
    for place, record in enumerate(prepared.record_ids):
      kind = 0 if flips[int(record)] else 1
      scored[kind] += 1
      removed[kind] += "weights" in terms and not terms["weights"][place].any()
  call("evaluate", workdir, *words)
  (found,) = workdir.glob("evaluations/step_*/results.json")
  estimates = json.loads(found.read_text())["metrics"]
  lines = metrics.read(workdir / "metrics.jsonl")
  updates = [line for line in lines if line["kind"] == "update"]
  return Outcome(
      reward,
      estimates["exact_match"]["value"],
      tuple(removed.tolist()),
      tuple(scored.tolist()),
      int(sum(line["tokens"] for line in updates)),
  )


def study(seed: int, rounds: int, flipped: float) -> dict[str, Outcome]:
  """Returns the outcome of every way of training from one start policy.

  It writes below the current folder. Names are relative: a path in the
  configuration is part of the lineage, which orders the mini-batches.
  """
  folder = pathlib.Path(f"seed_{seed}")
  shutil.rmtree(folder, ignore_errors=True)
  words = write_problems(folder, seed)
  make_start(folder, words, seed)
  words.append(f"--config.model.path={folder / 'model'}")
  make_validation(folder, words)
  ways = {
      "ippo, sft": lambda: ippo(folder, "sft", "same"),
      "ippo, policy_gradient": lambda: ippo(folder, "policy_gradient", "same"),
      "ippo, sft on other problems": lambda: ippo(folder, "sft", "other"),
      "random filter": lambda: random_filter(
          found["ippo, sft"].removed_share
      ),
      "plain": lambda: [],
  }
  found = {}
  for number, (name, curation) in enumerate(ways.items()):
    found[name] = train(
        folder / f"way_{number}", [*words, *curation()], seed, rounds, flipped
    )
    one = found[name]
    print(json.dumps({
        "seed": seed, "way": name,
        "precision": round(one.precision, 3), "recall": round(one.recall, 3),
        "removed": round(one.removed_share, 3),
        "reward": [round(value, 3) for value in one.reward],
        "held_out": round(one.held_out, 3), "tokens": one.tokens,
    }), flush=True)
  return found


def spread(values: Sequence[float]) -> str:
  """Returns mean and range."""
  mean = statistics.mean(values)
  return f"{mean:.3f} [{min(values):.3f}, {max(values):.3f}]"


def summarise(studies: Sequence[dict[str, Outcome]]) -> bool:
  """Prints means with ranges over the seeds, and whether each claim holds."""
  for name in studies[0]:
    ones = [found[name] for found in studies]
    print(
        f"{name}: precision {spread([one.precision for one in ones])}, recall"
        f" {spread([one.recall for one in ones])}, reward"
        f" {spread([one.reward[-1] for one in ones])}, held out"
        f" {spread([one.held_out for one in ones])}, tokens"
        f" {statistics.mean(one.tokens for one in ones):.0f}"
    )
  claims = {}
  for name in FILTERS:
    claims[f"{name}: precision and recall ≥ {SHARP} in every seed"] = all(
        min(found[name].precision, found[name].recall) >= SHARP
        for found in studies
    )
    for other in OTHERS:
      gains = [
          found[name].reward[-1] - found[other].reward[-1] for found in studies
      ]
      claim = f"{name}: mean reward over that of {other}, by {spread(gains)}"
      claims[claim] = statistics.mean(gains) > 0
  for claim, holds in claims.items():
    print(f"{'yes' if holds else 'NO '} {claim}")
  return all(claims.values())


def main() -> int:
  """Prints the lines; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--flipped", type=float, default=0.3)
  parser.add_argument("--folder", type=pathlib.Path, default="runs/ippo")
  asked = parser.parse_args()
  asked.folder.mkdir(parents=True, exist_ok=True)
  with contextlib.chdir(asked.folder):
    studies = [
        study(seed, asked.rounds, asked.flipped) for seed in range(asked.seeds)
    ]
  return 0 if summarise(studies) else 1


if __name__ == "__main__":
  sys.exit(main())
