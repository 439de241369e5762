"""Shards of two rounds that serve every objective, and training on them.

A donor run keeps the top ids of each token and a greedy answer to each prompt.
Rewards are written by hand, since random weights earn none. Its first round is
fresh to every objective; the second was drawn by its trained policy and is
stale.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import shutil

from jaxrl_llm import __main__ as door
from jaxrl_llm import types
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards
from jaxrl_llm.losses import objective
from jaxrl_llm.training import metrics
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import parts

ROOT = pathlib.Path(__file__).parents[2]
FILES = {path.stem: path for path in ROOT.glob("configs/objectives/*.py")}
# A round is one rollout batch: 2 epochs of 2 mini-batches of 2 groups of 8.
SIZES = {
    "model.remat": "none",
    "prompts.count": 64,
    "prompts.eval_count": 4,
    "generation.prompts_per_round": 4,
    "generation.samples_per_prompt": 8,
    "train.epochs": 2,
    "train.groups_per_minibatch": 2,
    "train.rows_per_microbatch": 2,
}
Updates = Sequence[Mapping[str, float]]


def words(path: pathlib.Path, keys: Mapping[str, object]) -> list[str]:
  """Returns a command line; keys without a section are the objective's."""
  full = {k if "." in k else f"objective.{k}": v for k, v in keys.items()}
  chosen = SIZES | full
  return [
      f"--config={path}",
      *(f"--config.{name}={value}" for name, value in chosen.items()),
  ]


def call(
    verb: str,
    path: pathlib.Path,
    workdir: pathlib.Path,
    keys: Mapping[str, object],
) -> None:
  """Runs a verb in this process."""
  assert door.main([verb, *words(path, keys), f"--workdir={workdir}"]) == 0


def records_of(
    folder: pathlib.Path,
) -> tuple[schema.FolderMetadata, list[types.Rollout]]:
  """Reads a finished folder."""
  opened = shards.open_folder(folder)
  return opened.metadata, [opened[index] for index in range(len(opened))]


def grade(folder: pathlib.Path) -> None:
  """Writes a finished folder anew: reward 1 where the first token is even."""
  metadata, rollouts = records_of(folder)
  graded = [
      dataclasses.replace(
          rollout, reward=float(rollout.response_tokens[0] % 2 == 0)
      )
      for rollout in rollouts
  ]
  shutil.rmtree(folder)
  write(folder, metadata, graded)


def write(
    folder: pathlib.Path,
    metadata: schema.FolderMetadata,
    rollouts: Sequence[types.Rollout],
) -> None:
  """Writes a finished folder."""
  writer = shards.ShardWriter(folder, metadata, 1)
  writer.write(0, rollouts)
  writer.finish()


def generate(workdir: pathlib.Path) -> pathlib.Path:
  """Takes the donor run through two rounds; returns its rollouts/ folder."""
  keys = {"sampling.record_topk": 20}
  call("generate", FILES["remax"], workdir, keys)
  grade(workdir / "rollouts/round_00000/host_000")
  call("train", FILES["remax"], workdir, keys)
  call("generate", FILES["remax"], workdir, keys)
  grade(workdir / "rollouts/round_00001/host_000")
  return workdir / "rollouts"


def train(
    workdir: pathlib.Path, path: pathlib.Path, keys: Mapping[str, object]
) -> Updates:
  """Trains on what lies there or is named; returns what each update said."""
  config, _ = flags.parse("train", words(path, keys))
  if not objective.requirements(parts.spec(config)).correction_named:
    keys = {"correction": "none"} | keys
  call("train", path, workdir, keys)
  found = metrics.read(workdir / "metrics.jsonl")
  return [record for record in found if record["kind"] == "update"]
