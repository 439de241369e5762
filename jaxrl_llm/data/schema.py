"""What a rollout folder holds: features of a record, and its metadata.

The features are those of TFDS, so `tfds.builder_from_directory(folder)` opens
a finished folder. Scalars come back from TFDS as Python numbers and texts as
bytes: `decode` is the one place that casts them.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from jaxrl_llm import types

# Raised whenever a record or the metadata changes meaning.
SCHEMA_VERSION = 1
DATASET_NAME = "rollouts"
SPLIT = "train"
# Key of a folder's recorded configuration: what the loss of each prompt is
# multiplied by, by its id in decimal digits; 1 where nothing is said.
PROMPT_WEIGHTS = "prompt_weights"

INTEGERS = (
    "record_id",
    "prompt_id",
    "group_id",
    "sample_index",
    "round",
    "window_start",
)
FLOATS = ("temperature", "reward")
TEXTS = (
    "lineage",
    "finish_reason",
    "role",
    "reference_answer",
    "prompt_text",
    "response_text",
)
ARRAYS = {
    "prompt_tokens": np.int32,
    "response_tokens": np.int32,
    "response_mask": np.bool_,
    "behavior_logprobs": np.float32,
    "log_kept_mass": np.float32,
    "policy_versions": np.int32,
}
TOPK_ARRAYS = {"topk_ids": np.int32, "topk_logprobs": np.float32}


@dataclasses.dataclass(frozen=True)
class FolderMetadata:
  """What holds for every record of a folder.

  Attributes:
    lineage: policy versions compare only within one lineage.
    round: generation round.
    policy_version: optimizer updates of the policy that generated.
    weights_fingerprint: of its parameters.
    tokenizer_fingerprint: of `Tokenizer.fingerprint`.
    prompts_fingerprint: of `prompts.fingerprint`.
    sampling: sampling settings by name, JSON values.
    config: the configuration that generation reads, JSON values.
    code_version: of the package that generated.
    topk: K of the recorded top-K ids; 0 records none.
    reward_parts: names of the reward's parts, sorted.
    schema_version: of the code that wrote the folder.
  """

  lineage: str
  round: int
  policy_version: int
  weights_fingerprint: str
  tokenizer_fingerprint: str
  prompts_fingerprint: str
  sampling: Mapping[str, Any]
  config: Mapping[str, Any]
  code_version: str
  topk: int = 0
  reward_parts: tuple[str, ...] = ()
  schema_version: int = SCHEMA_VERSION

  def to_json(self) -> dict[str, Any]:
    """Returns the metadata as JSON values."""
    return {
        field.name: getattr(self, field.name)
        for field in dataclasses.fields(self)
    } | {"reward_parts": list(self.reward_parts)}

  @classmethod
  def from_json(cls, content: Mapping[str, Any], path: str) -> "FolderMetadata":
    """Reads `to_json` back.

    Raises:
      ValueError: another schema version, or fields of none; names `path`.
    """
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
      raise ValueError(
          f"{path}: expected schema version {SCHEMA_VERSION}, found {version};"
          " regenerate the folder, or read it with the release that wrote it."
      )
    names = {field.name for field in dataclasses.fields(cls)}
    if set(content) != names:
      odd = sorted(set(content) ^ names)
      raise ValueError(
          f"{path}: fields {odd} are missing or unknown; regenerate the folder."
      )
    parts = tuple(content["reward_parts"])
    return cls(**{**content, "reward_parts": parts})


def features(metadata: FolderMetadata) -> tfds.features.FeaturesDict:
  """Returns the TFDS features of a record of this folder."""
  described: dict[str, Any] = {name: np.int64 for name in INTEGERS}
  described |= {name: np.float32 for name in FLOATS}
  described |= {name: tfds.features.Text() for name in TEXTS}
  described |= {
      name: tfds.features.Tensor(shape=(None,), dtype=dtype)
      for name, dtype in ARRAYS.items()
  }
  if metadata.topk:
    described |= {
        name: tfds.features.Tensor(shape=(None, metadata.topk), dtype=dtype)
        for name, dtype in TOPK_ARRAYS.items()
    }
  if metadata.reward_parts:
    described["reward_parts"] = {
        name: np.float32 for name in metadata.reward_parts
    }
  return tfds.features.FeaturesDict(described)


def filename_template(
    folder: pathlib.Path,
) -> tfds.core.ShardedFileTemplate:
  """Returns how TFDS names the shards of a folder."""
  return tfds.core.ShardedFileTemplate(
      dataset_name=DATASET_NAME,
      data_dir=tfds.core.Path(folder),
      split=SPLIT,
      filetype_suffix="array_record",
  )


def describe(
    folder: pathlib.Path,
    described: tfds.features.FeaturesDict,
    records: Sequence[int],
    size: int,
) -> None:
  """Writes features.json and dataset_info.json.

  Args:
    folder: that holds the shards.
    described: features of a record.
    records: of each shard.
    size: bytes of all serialized records.
  """
  dataset = tfds.core.DatasetInfo(
      builder=tfds.core.DatasetIdentity(
          name=DATASET_NAME,
          version=f"{SCHEMA_VERSION}.0.0",
          data_dir=os.fspath(folder),
          module_name="",
      ),
      features=described,
      disable_shuffling=True,
  )
  dataset.set_file_format("array_record")
  split = tfds.core.SplitInfo(
      name=SPLIT,
      shard_lengths=list(records),
      num_bytes=size,
      filename_template=filename_template(folder),
  )
  dataset.set_splits(tfds.core.SplitDict([split]))
  dataset.write_to_directory(os.fspath(folder))


def encode(rollout: types.Rollout, metadata: FolderMetadata) -> dict[str, Any]:
  """Returns the example that TFDS serializes.

  Raises:
    ValueError: the record does not fit the folder; see `misfit`.
  """
  problem = misfit(rollout, metadata)
  if problem:
    raise ValueError(f"record {rollout.record_id}: {problem}")
  names = (*INTEGERS, *FLOATS, *TEXTS)
  example = {name: getattr(rollout, name) for name in names}
  arrays = ARRAYS | (TOPK_ARRAYS if metadata.topk else {})
  for name, dtype in arrays.items():
    example[name] = np.asarray(getattr(rollout, name), dtype)
  if metadata.reward_parts:
    example["reward_parts"] = dict(rollout.reward_parts)
  return example


def decode(
    example: Mapping[str, Any], metadata: FolderMetadata
) -> types.Rollout:
  """Returns the record of an example read by TFDS.

  Raises:
    ValueError: a field came back empty, as from a truncated shard.
  """
  missing = [name for name, value in example.items() if value is None]
  if missing:
    raise ValueError(f"fields {missing[:3]} came back empty")
  values: dict[str, Any] = {name: int(example[name]) for name in INTEGERS}
  values |= {name: float(np.float32(example[name])) for name in FLOATS}
  values |= {name: _text(example[name]) for name in TEXTS}
  for name, dtype in ARRAYS.items():
    values[name] = np.asarray(example[name], dtype).reshape(-1)
  length = values["response_tokens"].size
  for name, dtype in TOPK_ARRAYS.items():
    empty = np.zeros((length, 0), dtype)
    values[name] = np.asarray(example.get(name, empty), dtype)
  parts = example.get("reward_parts", {})
  values["reward_parts"] = {
      name: float(np.float32(value)) for name, value in parts.items()
  }
  return types.Rollout(**values)


def misfit(rollout: types.Rollout, metadata: FolderMetadata) -> str | None:
  """Says why a record must not be trained on, or None.

  A log-prob is that of the sampled token, so it is finite and at most 0 (up to
  rounding). Entries of `topk_logprobs` may be -inf: truncated sampling gives
  them no mass.
  """
  length = np.size(rollout.response_tokens)
  if not np.size(rollout.prompt_tokens) or not length:
    return "expected at least one prompt token and one response token"
  per_token = [name for name in ARRAYS if name != "prompt_tokens"]
  shapes = {name: (length,) for name in per_token}
  shapes |= {name: (length, metadata.topk) for name in TOPK_ARRAYS}
  for name, shape in shapes.items():
    found = np.shape(getattr(rollout, name))
    if found != shape:
      return f"{name}: expected shape {shape}, found {found}"
  for name in ("behavior_logprobs", "log_kept_mass", "topk_logprobs"):
    problem = _logprob_problem(name, np.asarray(getattr(rollout, name)))
    if problem:
      return problem
  if min(np.min(rollout.prompt_tokens), np.min(rollout.response_tokens)) < 0:
    return "negative token id"
  if rollout.finish_reason not in types.FINISH_REASONS:
    return f"finish_reason: unknown value {rollout.finish_reason!r}"
  if rollout.role not in types.ROLES:
    return f"role: unknown value {rollout.role!r}"
  least = 0.0 if rollout.role == "baseline" else np.nextafter(0, 1)
  if not least <= rollout.temperature < np.inf:
    return (
        f"temperature: expected finite and {'≥' if least == 0 else '>'} 0,"
        f" found {rollout.temperature}"
    )
  if np.isinf(rollout.reward):
    return f"reward: expected finite, or NaN, found {rollout.reward}"
  if not 0 <= rollout.window_start < length:
    return (
        f"window_start: expected from 0 to {length - 1}, found"
        f" {rollout.window_start}"
    )
  if rollout.round != metadata.round:
    return f"round: folder {metadata.round}, record {rollout.round}"
  if rollout.lineage != metadata.lineage:
    return f"lineage: folder {metadata.lineage!r}, record {rollout.lineage!r}"
  if sorted(rollout.reward_parts) != sorted(metadata.reward_parts):
    return (
        f"reward_parts: folder {sorted(metadata.reward_parts)}, record"
        f" {sorted(rollout.reward_parts)}"
    )
  return None


def _logprob_problem(name: str, values: np.ndarray) -> str | None:
  """Finds the first value that is no log-prob."""
  allowed = values <= 1e-5  # False for NaN.
  if name != "topk_logprobs":
    allowed &= np.isfinite(values)
  if allowed.all():
    return None
  index = np.argwhere(~allowed)[0]
  found = values[tuple(index)]
  return f"{name}: expected finite and ≤ 0, found {found} at token {index[0]}"


def _text(value: Any) -> str:
  """Decodes a text feature."""
  return value.decode("utf-8") if isinstance(value, bytes) else str(value)
