"""What a loss that compares the sequences of a mini-batch reads of each."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_llm.data import index as indices


def by_sequence(
    index: indices.Index,
    terms: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, np.ndarray]:
  """Returns sequence_scores and sequence_groups, see `types.Terms`.

  Sequence n is record n, as `packing.assemble` has it. The arrays are filled
  up to a power of two, so that functions compile for a handful of shapes.

  Args:
    index: of the N records of a mini-batch.
    terms: prepared terms by name, an entry per record.
  """
  count = len(index)
  size = 2 ** (count - 1).bit_length()
  scores, groups = np.zeros(size, np.float32), np.full(size, -1, np.int32)
  scores[:count] = terms["advantages"]
  groups[:count] = np.unique(index.group_ids, return_inverse=True)[1]
  return {"sequence_scores": scores, "sequence_groups": groups}


def any_in(
    index: indices.Index,
    terms: Mapping[str, Sequence[np.ndarray]],
) -> bool:
  """Whether two records of one group differ in score; see `by_sequence`."""
  seen: dict[int, float] = {}
  return any(
      seen.setdefault(group, float(score)) != float(score)
      for group, score in zip(index.group_ids.tolist(), terms["advantages"])
  )
