"""The arrays of a mini-batch while they are filled, sequence by sequence."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np

from jaxrl_llm import types


class Canvas:
  """Arrays [B, T] by name, made when first painted on."""

  _DTYPES = {
      "mask": np.bool_,
      "record_ids": np.uint32,
      **dict.fromkeys(
          (
              "tokens",
              "segment_ids",
              "parent_ids",
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
      self, rows: int, rows_per_microbatch: int, tokens_per_row: int
  ):
    """Rounds the number of rows up.

    Args:
      rows: at least so many.
      rows_per_microbatch: B becomes a multiple of it.
      tokens_per_row: T.
    """
    microbatches = max(1, -(-rows // rows_per_microbatch))
    self._shape = (microbatches * rows_per_microbatch, tokens_per_row)
    self._arrays: dict[str, np.ndarray] = {}

  def paint(
      self, row: int, start: int, stop: int, entries: Mapping[str, Any]
  ) -> None:
    """Writes entries over the tokens start … stop − 1 of a row.

    Args:
      row: index of the row.
      start: index of the first token.
      stop: index after the last one.
      entries: by name, one for all tokens or one each, [n] or [n, K].

    Raises:
      ValueError: more or fewer entries than tokens.
    """
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
    own = (
        "tokens", "segment_ids", "parent_ids", "positions", "temperatures"
    )
    batch = {name: arrays[name] for name in own}
    names = {field.name for field in dataclasses.fields(types.Terms)}
    terms = {name: array for name, array in arrays.items() if name in names}
    return types.Batch(**batch, terms=types.Terms(**terms))
