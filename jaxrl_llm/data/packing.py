"""Lays sequences into rows of a fixed shape, and fills their arrays.

Neighbours in a row with the same prompt share its tokens: the prompt less its
last token is a segment, and each response, the prompt's last token before it,
is a segment that continues it. Eight responses of 10 tokens to a prompt of 55
fill 142 tokens so, and 520 apart; log-probs are the same.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import difflib
from typing import Any

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import canvas as canvas_lib
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


def pack(
    lengths: np.ndarray,
    response_lengths: np.ndarray,
    prompts: np.ndarray,
    tokens_per_row: int,
) -> list[list[int]]:
  """Packs sequences into rows, first fit decreasing, prompt by prompt.

  Args:
    lengths: int [N], tokens of each sequence, prompt included.
    response_lengths: int [N], tokens of its response.
    prompts: int [N], equal where the prompts' tokens are.
    tokens_per_row: capacity of a row.

  Returns:
    Sequence numbers by row, those of one prompt side by side. The same
    arguments give the same rows.

  Raises:
    ValueError: a sequence that no row can hold.
  """
  lengths, response_lengths, prompts = (
      np.asarray(x, np.int64) for x in (lengths, response_lengths, prompts)
  )
  _, prompt = np.unique(prompts, return_inverse=True)
  # What a sequence adds to a row that holds its prompt: the prompt's last
  # token, if it has one, and the response.
  added = response_lengths + (lengths > response_lengths)
  longest = np.zeros(len(lengths), np.int64)
  np.maximum.at(longest, prompt, lengths)
  order = np.lexsort((-lengths, prompt, -longest[prompt]))
  rows: list[list[int]] = []
  free = np.zeros(len(lengths), np.int64)
  holding: list[int] = []
  for before, index in zip([None, *order], order):
    if lengths[index] > tokens_per_row:
      raise ValueError(
          f"sequence {index} has {lengths[index]} tokens, a row holds"
          f" {tokens_per_row}; raise train.tokens_per_row."
      )
    if before is None or prompt[before] != prompt[index]:
      holding = []
    sharing = [row for row in holding if free[row] >= added[index]]
    if sharing:
      row = sharing[0]
      free[row] -= added[index]
    else:
      fitting = np.flatnonzero(free[: len(rows)] >= lengths[index])
      row = int(fitting[0]) if fitting.size else len(rows)
      if row == len(rows):
        rows.append([])
        free[row] = tokens_per_row
      holding.append(row)
      free[row] -= lengths[index]
    rows[row].append(int(index))
  return rows


def pack_rollouts(
    rollouts: Sequence[types.Rollout], tokens_per_row: int
) -> list[list[int]]:
  """Packs records at hand; see `pack`."""
  return pack_indexed(indices.Index.of(rollouts), tokens_per_row)


def pack_indexed(
    index: indices.Index, tokens_per_row: int
) -> list[list[int]]:
  """Packs the records of an index, read or not; see `pack`."""
  return pack(
      index.lengths,
      index.response_lengths,
      index.prompt_fingerprints,
      tokens_per_row,
  )


@dataclasses.dataclass(frozen=True)
class Segment:
  """A stretch of a row.

  Attributes:
    number: 1, 2, … within the row.
    parent: segment that it continues; its own number where there is none.
    start: index within the row.
    stop: index after its last token.
    position: of its first token in the sequence.
    record: number of the record whose tokens it holds.
    responds: whether they are its response, behind the prompt's last token;
      else they are the rest of its prompt, that others continue.
  """

  number: int
  parent: int
  start: int
  stop: int
  position: int
  record: int
  responds: bool

  def tokens(self, rollout: types.Rollout) -> np.ndarray:
    """Returns its tokens, int32; the rollout is that of its record."""
    prompt = rollout.prompt_tokens
    if not self.responds:
      return prompt[:-1]
    return np.concatenate([prompt[-1:], rollout.response_tokens])


def segments(
    index: indices.Index, members: Sequence[int]
) -> Iterator[Segment]:
  """Yields the segments of a row that holds some of the records, in order."""
  prompt = None
  number = parent = start = 0
  for record in members:
    response = int(index.response_lengths[record])
    size = int(index.lengths[record]) - response
    rest = max(0, size - 1)
    if prompt is None or prompt != index.prompt_fingerprints[record]:
      prompt = index.prompt_fingerprints[record]
      number += 1
      parent, stop = number, start + rest
      yield Segment(number, number, start, stop, 0, record, False)
      start = stop
    number += 1
    stop = start + size - rest + response
    yield Segment(number, parent, start, stop, rest, record, True)
    start = stop


def assemble(
    rollouts: Sequence[types.Rollout | None],
    rows: Sequence[Sequence[int]],
    *,
    tokens_per_row: int,
    rows_per_microbatch: int = 1,
    prepared: Mapping[str, Sequence[Any]] | None = None,
    index: indices.Index | None = None,
) -> types.Batch:
  """Fills the arrays of one mini-batch.

  Neighbours in a row that have the same prompt share it (see the module).
  Rows are added, empty, up to a multiple of `rows_per_microbatch`, so that the
  number of micro-batches depends on the mini-batch alone. Per-token terms stand
  at the token's own index; sequence terms are spread over the sequence.
  Behaviour log-probs are those of the full vocabulary: behavior_logprobs +
  log_kept_mass, and so for the recorded top-K.

  Args:
    rollouts: N records of the mini-batch; None of those that were not read,
      whose places stay empty. One at least was.
    rows: indices of `rollouts` by row, as `pack` gives them.
    tokens_per_row: T.
    rows_per_microbatch: the number of rows becomes a multiple of it.
    prepared: by name (see PREPARED), one entry per rollout: a number, [R] or
      [R, K]. `weights` are 1 where not given.
    index: of the N records; None makes it of `rollouts`.

  Returns:
    A batch of numpy arrays [B, T]; live fields and what was not prepared are
    None.

  Raises:
    ValueError: a prepared term is none of PREPARED, or not one per record.
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
  canvas = canvas_lib.Canvas(len(rows), rows_per_microbatch, tokens_per_row)
  index = index or indices.Index.of(rollouts)
  groups = np.unique(index.group_ids, return_inverse=True)[1]
  for row, members in enumerate(rows):
    for segment in segments(index, members):
      member = segment.record
      if rollouts[member] is None:
        continue
      terms = {name: values[member] for name, values in prepared.items()}
      _paint(canvas, row, segment, rollouts[member], groups[member], terms)
  return canvas.batch()


def _paint(canvas, row, segment, rollout, group, terms) -> None:
  """Fills a segment's part of a row.

  Args:
    canvas: of the mini-batch.
    row: number of the row.
    segment: of the row.
    rollout: record whose tokens it holds.
    group: number of the record's group in the mini-batch.
    terms: prepared for the record, by name.
  """
  start, stop = segment.start, segment.stop
  canvas.paint(row, start, stop, _common(segment, rollout))
  if not segment.responds:
    return
  sequence = _sequence(rollout)
  sequence["sequence_ids"] = np.int32(segment.record)
  sequence["group_ids"] = np.int32(group)
  canvas.paint(row, start, stop, sequence)
  start = stop - rollout.response_tokens.size
  canvas.paint(row, start, stop, _response(rollout) | terms)


def _common(segment: Segment, rollout: types.Rollout) -> dict[str, Any]:
  """Returns what is said of every token, those of shared prompts included."""
  return {
      "tokens": segment.tokens(rollout),
      "segment_ids": segment.number,
      "parent_ids": segment.parent,
      "positions": np.arange(
          segment.position, segment.position + segment.stop - segment.start
      ),
  }


def _sequence(rollout: types.Rollout) -> dict[str, Any]:
  """Returns what is said of a response and the prompt token before it."""
  return {
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
