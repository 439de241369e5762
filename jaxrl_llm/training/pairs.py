"""What a loss that compares the sequences of a mini-batch reads of each."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_llm import types


def by_sequence(
    rollouts: Sequence[types.Rollout],
    terms: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, np.ndarray]:
  """Returns sequence_scores and sequence_groups, see `types.Terms`.

  Sequence n is record n, as `packing.assemble` has it. The arrays are filled
  up to a power of two, so that functions compile for a handful of shapes.

  Args:
    rollouts: N records of a mini-batch.
    terms: prepared terms by name, an entry per record.
  """
  count = len(rollouts)
  size = 2 ** (count - 1).bit_length()
  scores, groups = np.zeros(size, np.float32), np.full(size, -1, np.int32)
  scores[:count] = terms["advantages"]
  ids = [rollout.group_id for rollout in rollouts]
  groups[:count] = np.unique(ids, return_inverse=True)[1]
  return {"sequence_scores": scores, "sequence_groups": groups}


def any_in(
    rollouts: Sequence[types.Rollout],
    terms: Mapping[str, Sequence[np.ndarray]],
) -> bool:
  """Whether two records of one group differ in score; see `by_sequence`."""
  seen: dict[int, float] = {}
  return any(
      seen.setdefault(rollout.group_id, float(score)) != float(score)
      for rollout, score in zip(rollouts, terms["advantages"])
  )
