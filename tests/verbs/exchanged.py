"""A generated round, and its records as a dump of another system."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib

import frozen_rounds
import numpy as np

from jaxrl_llm import __main__ as door
from jaxrl_llm import types
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards
from jaxrl_llm.training import metrics

TINY = frozen_rounds.ROOT / "configs/tiny.py"
SHARDS = "rollouts/round_00000/host_000"
# Two shards, so that a half-written folder can be told from a whole one.
SIZES = frozen_rounds.SIZES | {"generation.records_per_shard": 16}


def call(verb: str, workdir: pathlib.Path, **keys) -> int:
  """Runs a verb in this process; keys have __ for a dot."""
  words = {name.replace("__", "."): value for name, value in keys.items()}
  return door.main([
      verb,
      f"--config={TINY}",
      *(f"--config.{name}={value}" for name, value in (SIZES | words).items()),
      f"--workdir={workdir}",
  ])


def updates_of(workdir: pathlib.Path) -> list[dict[str, float]]:
  """Returns what each update said."""
  rows = metrics.read(workdir / "metrics.jsonl")
  return [row for row in rows if row["kind"] == "update"]


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def generate(workdir: pathlib.Path) -> pathlib.Path:
  """Generates a round, graded by hand, its prompts weighed."""
  assert call("generate", workdir, sampling__temperature=0.8) == 0
  metadata, rollouts = frozen_rounds.records_of(workdir / SHARDS)
  verdicts = {"correct": float("nan"), "format": 0.0, "parsed": 1.0}
  graded = [
      dataclasses.replace(
          rollout,
          reward=float(rollout.response_tokens[0] % 2 == 0),
          reward_parts=verdicts,
      )
      for rollout in rollouts
  ]
  config = {**metadata.config, schema.PROMPT_WEIGHTS: {
      str(rollout.prompt_id): 1.0 + rollout.prompt_id % 2
      for rollout in graded
  }}
  metadata = dataclasses.replace(metadata, config=config)
  for path in (workdir / SHARDS).iterdir():
    path.unlink()
  writer = shards.ShardWriter(workdir / SHARDS, metadata, 2)
  writer.write(0, graded[:16])
  writer.write(1, graded[16:])
  writer.finish()
  return workdir


def dump(
    path: pathlib.Path, rollouts: Sequence[types.Rollout], shift: int = 0
) -> pathlib.Path:
  """Writes rollouts as vLLM does, a line per prompt, log-probs shifted."""
  groups: dict[int, list[types.Rollout]] = {}
  for rollout in rollouts:
    groups.setdefault(rollout.group_id, []).append(rollout)
  lines = []
  for members in groups.values():
    outputs = [
        {
            "index": index,
            "token_ids": rollout.response_tokens.tolist(),
            "logprobs": [
                {"logprob": float(value)}
                for value in np.roll(rollout.behavior_logprobs, shift)
            ],
            "finish_reason": rollout.finish_reason,
            "reward": rollout.reward,
        }
        for index, rollout in enumerate(members)
    ]
    first = members[0]
    lines.append(json.dumps({
        "prompt_token_ids": first.prompt_tokens.tolist(),
        "question": first.prompt_text,
        "reference_answer": first.reference_answer,
        "outputs": outputs,
    }))
  path.write_text("\n".join(lines) + "\n", "utf-8")
  return path


def foreign(path: pathlib.Path, workdir: pathlib.Path, **keys) -> int:
  """Imports a dump of vLLM's."""
  given = {
      "files": path,
      "format": "vllm",
      "fields": "question=question",
      "temperature": 0.8,
      "logprobs": "tempered",
  } | keys
  words = {f"import_rollouts__{name}": value for name, value in given.items()}
  return call("import-rollouts", workdir, **words)
