"""Records as rows of JSON or Parquet, and back, equal to the bit.

A row holds every field of a record under its own name; `folder`, the metadata
of its folder, and `prompt_weight`, what the allocation multiplies its prompt's
loss by. JSON has neither NaN nor infinity: there a reward without a verdict is
null, and so is a top-K log-prob of no mass (-inf). Numbers are written with all
digits.
"""

from collections.abc import Mapping
import json
from typing import Any

import numpy as np
import pyarrow as pa

from jaxrl_llm import types
from jaxrl_llm.data import dump_values
from jaxrl_llm.data import schema

_FOLDER, _WEIGHT = "folder", "prompt_weight"
# What null stands for.
_NULLS = {"topk_logprobs": -np.inf}
_ARROW = {
    np.int32: pa.int32(),
    np.bool_: pa.bool_(),
    np.float32: pa.float32(),
}


def columns(metadata: schema.FolderMetadata) -> list[tuple[str, pa.DataType]]:
  """Returns names and types of the Parquet columns of a folder's records."""
  found: list[tuple[str, pa.DataType]] = []
  found += [(name, pa.int64()) for name in schema.INTEGERS]
  found += [(name, pa.float32()) for name in schema.FLOATS]
  found += [(name, pa.string()) for name in schema.TEXTS]
  found += [
      (name, pa.list_(_ARROW[dtype])) for name, dtype in schema.ARRAYS.items()
  ]
  if metadata.topk:
    found += [
        (name, pa.list_(pa.list_(_ARROW[dtype])))
        for name, dtype in schema.TOPK_ARRAYS.items()
    ]
  if metadata.reward_parts:
    parts = [(name, pa.float32()) for name in metadata.reward_parts]
    found.append(("reward_parts", pa.struct(parts)))
  return [*found, (_WEIGHT, pa.float64()), (_FOLDER, pa.string())]


def row(
    rollout: types.Rollout, metadata: schema.FolderMetadata
) -> dict[str, Any]:
  """Returns a record as a row, for JSON or Parquet."""
  names = (*schema.INTEGERS, *schema.FLOATS, *schema.TEXTS)
  values = {name: getattr(rollout, name) for name in names}
  arrays = schema.ARRAYS | (schema.TOPK_ARRAYS if metadata.topk else {})
  values |= {name: getattr(rollout, name).tolist() for name in arrays}
  if metadata.reward_parts:
    values["reward_parts"] = dict(rollout.reward_parts)
  content = metadata.to_json()
  config = dict(content["config"])
  weights = config.pop(schema.PROMPT_WEIGHTS, None)
  weight = (weights or {}).get(str(rollout.prompt_id), 1.0)
  values[_WEIGHT] = None if weights is None else weight
  folder = content | {"config": config}
  values[_FOLDER] = json.dumps(folder, sort_keys=True)
  return {name: _without_odd(value) for name, value in values.items()}


def record(
    values: Mapping[str, Any], place: str
) -> tuple[types.Rollout, schema.FolderMetadata, float | None]:
  """Reads a row of `row` back.

  Returns:
    The record, the metadata of its folder without the weights of prompts, and
    the weight of its prompt (None where the folder has none).

  Raises:
    ValueError: fields are missing or unknown, or hold something else.
  """
  if not isinstance(values.get(_FOLDER), str):
    raise ValueError(
        f"{_FOLDER}: expected the metadata of `export-rollouts`, found"
        f" {dump_values.shown(values.get(_FOLDER))}; set"
        " import_rollouts.format to the system that wrote the file"
    )
  content = json.loads(values[_FOLDER])
  metadata = schema.FolderMetadata.from_json(content, f"{place}: {_FOLDER}")
  wanted = {name for name, _ in columns(metadata)}
  if set(values) != wanted:
    odd = sorted(set(values) ^ wanted)
    raise ValueError(
        f"{odd[0]}: the field is missing or unknown; export the folder again"
    )
  try:
    rollout = schema.decode(_example(values), metadata)
  except (TypeError, ValueError, OverflowError) as error:
    raise ValueError(
        f"a field holds something else than exported ({error}); export the"
        " folder again"
    ) from error
  return rollout, metadata, values[_WEIGHT]


def _example(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what schema.decode reads, with numbers in the place of null."""
  example = {
      name: value
      for name, value in values.items()
      if name not in (_FOLDER, _WEIGHT)
  }
  for name, value in _NULLS.items():
    if name in example:
      example[name] = [
          [value if item is None else item for item in entry]
          for entry in example[name]
      ]
  if example["reward"] is None:
    example["reward"] = np.nan
  if "reward_parts" in example:
    example["reward_parts"] = {
        name: np.nan if value is None else value
        for name, value in example["reward_parts"].items()
    }
  return example


def _without_odd(value: Any) -> Any:
  """Writes null for NaN and for -inf."""
  if isinstance(value, list):
    return [_without_odd(item) for item in value]
  if isinstance(value, dict):
    return {name: _without_odd(item) for name, item in value.items()}
  odd = isinstance(value, float) and not np.isfinite(value)
  return None if odd else value
