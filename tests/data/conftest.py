"""Small records and folders for the tests of jaxrl_llm/data."""

import dataclasses
import pathlib

import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards

LINEAGE = "lineage"


def make_metadata(**changes) -> schema.FolderMetadata:
  values = dict(
      lineage=LINEAGE,
      round=0,
      policy_version=3,
      weights_fingerprint="weights",
      tokenizer_fingerprint="tokenizer",
      prompts_fingerprint="prompts",
      sampling={"temperature": 0.7, "stops": (1, 2)},
      config={"seed": 0},
      code_version="0.1",
      topk=2,
      reward_parts=("correct", "format"),
  )
  return schema.FolderMetadata(**{**values, **changes})


def make_rollout(number: int, **changes) -> types.Rollout:
  """Record `number`: sample number % 4 of prompt number // 4."""
  prompt_id, sample = divmod(number, 4)
  length = 3 + number % 5
  draw = np.random.default_rng(number)
  topk = changes.pop("topk", 2)
  rollout = types.Rollout(
      record_id=fingerprints.of_record(LINEAGE, 0, prompt_id, sample),
      prompt_id=prompt_id,
      group_id=fingerprints.of_group(LINEAGE, 0, prompt_id),
      sample_index=sample,
      round=0,
      prompt_tokens=np.arange(10, 14, dtype=np.int32),
      response_tokens=draw.integers(0, 99, length).astype(np.int32),
      response_mask=np.ones(length, np.bool_),
      behavior_logprobs=-draw.random(length, np.float32),
      log_kept_mass=-0.25 * draw.random(length, np.float32),
      policy_versions=np.full(length, 3, np.int32),
      lineage=LINEAGE,
      window_start=0,
      topk_ids=draw.integers(0, 99, (length, topk)).astype(np.int32),
      topk_logprobs=-draw.random((length, topk), np.float32),
      finish_reason="stop",
      role="train",
      temperature=0.7,
      reward=float(sample % 2),
      reward_parts={"correct": float(sample % 2), "format": 0.1},
      reference_answer="½",
      prompt_text="What is 1/2?\n",
      response_text="½ \u2028 \x00",
  )
  return dataclasses.replace(rollout, **changes)


def make_folder(
    path: pathlib.Path,
    rollouts: list[types.Rollout],
    shard_count: int = 2,
    **changes,
) -> pathlib.Path:
  """Writes a finished folder whose shards hold equal shares."""
  writer = shards.ShardWriter(path, make_metadata(**changes), shard_count)
  size = -(-len(rollouts) // shard_count)
  for index in range(shard_count):
    writer.write(index, rollouts[index * size : (index + 1) * size])
  writer.finish()
  return path


@pytest.fixture
def rollout():
  return make_rollout


@pytest.fixture
def metadata():
  return make_metadata


@pytest.fixture
def write_folder(tmp_path):
  """Writes a folder under the test's own path."""
  return lambda name, rollouts, *args, **changes: make_folder(
      tmp_path / name, rollouts, *args, **changes
  )
