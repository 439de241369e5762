"""Lays sequences into rows of a fixed shape, and fills the device arrays."""

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
from typing import Any

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import index as indices

# Terms that training prepares per record, once per rollout batch.
PREPARED = (
    "advantages",
    "rewards",
    "weights",
    "proximal_logprobs",
    "reference_logprobs",
    "proximal_values",
    "returns",
    "topk_ids",
    "topk_anchor_logprobs",
)


def pack(lengths: Sequence[int], tokens_per_row: int) -> list[list[int]]:
  """Packs sequences into rows, first fit decreasing.

  Args:
    lengths: tokens of each sequence.
    tokens_per_row: capacity of a row.

  Returns:
    Indices of `lengths` by row. The same lengths give the same rows.

  Raises:
    ValueError: a sequence that no row can hold.
  """
  order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
  rows: list[list[int]] = []
  free = np.zeros(len(lengths), np.int64)
  for index in order:
    length = int(lengths[index])
    if length > tokens_per_row:
      raise ValueError(
          f"sequence {index} has {length} tokens, a row holds"
          f" {tokens_per_row}; raise train.tokens_per_row."
      )
    fitting = np.flatnonzero(free[: len(rows)] >= length)
    row = int(fitting[0]) if fitting.size else len(rows)
    if row == len(rows):
      rows.append([])
      free[row] = tokens_per_row
    rows[row].append(int(index))
    free[row] -= length
  return rows


def assemble(
    rollouts: Sequence[types.Rollout],
    rows: Sequence[Sequence[int]],
    *,
    tokens_per_row: int,
    rows_per_microbatch: int = 1,
    prepared: Mapping[str, Sequence[Any]] | None = None,
) -> types.Batch:
  """Fills the arrays of one mini-batch.

  Rows are added, empty, up to a multiple of `rows_per_microbatch`, so that the
  number of micro-batches depends on the mini-batch alone. Per-token terms stand
  at the token's own index; sequence terms are spread over the sequence.
  Behaviour log-probs are those of the full vocabulary: behavior_logprobs +
  log_kept_mass, and so for the recorded top-K.

  Args:
    rollouts: N records of the mini-batch.
    rows: indices of `rollouts` by row, as `pack` gives them.
    tokens_per_row: T.
    rows_per_microbatch: the number of rows becomes a multiple of it.
    prepared: by name (see PREPARED), one entry per rollout: a number, [R] or
      [R, K]. `weights` are 1 where not given.

  Returns:
    A batch of numpy arrays [B, T]; live fields and what was not prepared are
    None.
  """
  prepared = dict(prepared or {})
  for name, values in prepared.items():
    if name not in PREPARED:
      near = difflib.get_close_matches(name, PREPARED, n=1, cutoff=0)[0]
      raise ValueError(f"no prepared term {name!r}; the nearest is {near!r}.")
    if len(values) != len(rollouts):
      raise ValueError(
          f"prepared {name!r}: expected {len(rollouts)} entries, one per"
          f" record, found {len(values)}."
      )
  canvas = _Canvas(rows, rows_per_microbatch, tokens_per_row)
  groups = sorted({rollout.group_id for rollout in rollouts})
  group_numbers = {group: number for number, group in enumerate(groups)}
  for row, members in enumerate(rows):
    start = 0
    for segment, index in enumerate(members, start=1):
      rollout = rollouts[index]
      entries = _sequence(rollout)
      entries["segment_ids"] = np.int32(segment)
      entries["sequence_ids"] = np.int32(index)
      entries["group_ids"] = np.int32(group_numbers[rollout.group_id])
      response = _response(rollout)
      response |= {name: values[index] for name, values in prepared.items()}
      size = rollout.prompt_tokens.size
      stop = start + size + rollout.response_tokens.size
      canvas.paint(row, start, stop, entries)
      canvas.paint(row, start + size, stop, response)
      start = stop
  return canvas.batch()


def _sequence(rollout: types.Rollout) -> dict[str, Any]:
  """Returns what is said of every token of a sequence, prompt included."""
  tokens = np.concatenate([rollout.prompt_tokens, rollout.response_tokens])
  return {
      "tokens": tokens,
      "positions": np.arange(tokens.size, dtype=np.int32),
      "temperatures": np.float32(rollout.temperature),
      "record_ids": np.uint32(rollout.record_id & 0xFFFFFFFF),
      "rewards": np.float32(rollout.reward),
  }


def _response(rollout: types.Rollout) -> dict[str, Any]:
  """Returns what is said of response tokens only."""
  entries = {
      "mask": indices.trained_mask(rollout),
      "response_positions": np.arange(rollout.response_tokens.size),
      "versions": rollout.policy_versions,
      "behavior_logprobs": rollout.behavior_logprobs + rollout.log_kept_mass,
      "weights": 1.0,
  }
  if rollout.topk_ids.shape[1]:
    kept = rollout.log_kept_mass[:, np.newaxis]
    entries["topk_ids"] = rollout.topk_ids
    entries["topk_anchor_logprobs"] = rollout.topk_logprobs + kept
  return entries


class _Canvas:
  """Arrays [B, T] by name, made when first painted on."""

  _DTYPES = {
      "mask": np.bool_,
      "record_ids": np.uint32,
      **dict.fromkeys(
          (
              "tokens",
              "segment_ids",
              "positions",
              "sequence_ids",
              "group_ids",
              "response_positions",
              "versions",
              "topk_ids",
          ),
          np.int32,
      ),
  }
  _PADDING = {"sequence_ids": -1, "group_ids": -1, "temperatures": 1.0}

  def __init__(
      self,
      rows: Sequence[Sequence[int]],
      rows_per_microbatch: int,
      tokens_per_row: int,
  ):
    """Rounds the number of rows up."""
    microbatches = max(1, -(-len(rows) // rows_per_microbatch))
    self._shape = (microbatches * rows_per_microbatch, tokens_per_row)
    self._arrays: dict[str, np.ndarray] = {}

  def paint(
      self, row: int, start: int, stop: int, entries: Mapping[str, Any]
  ) -> None:
    """Writes entries, one per token or one for all, over tokens of a row."""
    for name, value in entries.items():
      value = np.asarray(value)
      if name not in self._arrays:
        dtype = self._DTYPES.get(name, np.float32)
        padding = self._PADDING.get(name, 0)
        shape = self._shape + value.shape[1:]
        self._arrays[name] = np.full(shape, padding, dtype)
      if value.ndim and len(value) != stop - start:
        raise ValueError(
            f"{name}: expected {stop - start} entries for the response's"
            f" tokens, found {len(value)}."
        )
      self._arrays[name][row, start:stop] = value

  def batch(self) -> types.Batch:
    """Hands the arrays over."""
    arrays = self._arrays
    own = ("tokens", "segment_ids", "positions", "temperatures")
    batch = {name: arrays[name] for name in own}
    names = {field.name for field in dataclasses.fields(types.Terms)}
    terms = {name: array for name, array in arrays.items() if name in names}
    return types.Batch(**batch, terms=types.Terms(**terms))
