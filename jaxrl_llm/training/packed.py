"""Records of a mini-batch laid into the rows of whole micro-batches."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import packing
from jaxrl_llm.data import reading
from jaxrl_llm.training import scoring


@dataclasses.dataclass(frozen=True)
class Rows:
  """Records laid into rows, and the number of micro-batches they fill.

  Attributes:
    shape: of a micro-batch.
    index: of N records.
    rollouts: the records; None of those that other hosts have read.
    rows: indices of the records by row.
  """

  shape: scoring.Shape
  index: indices.Index
  rollouts: Sequence[types.Rollout | None]
  rows: Sequence[Sequence[int]]

  @classmethod
  def pack(
      cls, shape: scoring.Shape, rollouts: Sequence[types.Rollout]
  ) -> "Rows":
    """Lays records at hand out."""
    index = indices.Index.of(rollouts)
    rows = packing.pack_indexed(index, shape.tokens)
    return cls(shape, index, rollouts, rows)

  @classmethod
  def read(
      cls,
      shape: scoring.Shape,
      sharding: jax.sharding.Sharding | None,
      records: reading.Records,
      index: indices.Index,
      positions: np.ndarray,
  ) -> "Rows":
    """Lays records out, and reads those of this host's rows.

    Args:
      shape: of a micro-batch.
      sharding: of its rows; None reads all.
      records: where the positions point to.
      index: of the records.
      positions: int64 [N].
    """
    chosen = index.at(positions)
    rows = packing.pack_indexed(chosen, shape.tokens)
    own = range(len(positions))
    if sharding is not None:
      own = scoring.own_members(rows, shape, sharding)
    rollouts = [
        records[int(position)] if member in own else None
        for member, position in enumerate(positions)
    ]
    return cls(shape, chosen, rollouts, rows)

  @property
  def count(self) -> int:
    """Micro-batches that hold a record."""
    return -(-len(self.rows) // self.shape.rows)

  @property
  def tokens(self) -> int:
    """Tokens that fill the rows; a shared prompt counts once."""
    return sum(
        segment.stop - segment.start
        for members in self.rows
        for segment in packing.segments(self.index, members)
    )

  def assemble(self, terms: Mapping[str, Sequence[Any]]) -> types.Batch:
    """Fills the arrays, for a power of two of micro-batches.

    So that what is jitted over whole mini-batches compiles for a handful of
    shapes. Places of records that were not read stay empty.

    Args:
      terms: prepared terms by name, an entry per record.
    """
    padded = self.shape.rows * 2 ** (self.count - 1).bit_length()
    return packing.assemble(
        self.rollouts,
        [*self.rows, *[[]] * (padded - len(self.rows))],
        tokens_per_row=self.shape.tokens,
        rows_per_microbatch=self.shape.rows,
        prepared=terms,
        index=self.index,
    )


def cut(tree: types.PyTree, rows: int, count: int) -> list[types.PyTree]:
  """Cuts arrays with rows on axis 0 into micro-batches.

  Args:
    tree: arrays of at least rows × count rows; those beyond are left out.
    rows: of a micro-batch.
    count: micro-batches.
  """
  return [
      jax.tree.map(lambda a, start=m * rows: a[start : start + rows], tree)
      for m in range(count)
  ]
