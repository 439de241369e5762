"""Records of a mini-batch laid into the rows of whole micro-batches."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax

from jaxrl_llm import types
from jaxrl_llm.data import packing
from jaxrl_llm.training import scoring


@dataclasses.dataclass(frozen=True)
class Rows:
  """Records laid into rows, and the number of micro-batches they fill.

  Attributes:
    shape: of a micro-batch.
    rollouts: N records.
    rows: indices of the records by row.
  """

  shape: scoring.Shape
  rollouts: Sequence[types.Rollout]
  rows: Sequence[Sequence[int]]

  @classmethod
  def pack(
      cls, shape: scoring.Shape, rollouts: Sequence[types.Rollout]
  ) -> "Rows":
    """Lays the records out."""
    return cls(shape, rollouts, packing.pack_rollouts(rollouts, shape.tokens))

  @property
  def count(self) -> int:
    """Micro-batches that hold a record."""
    return -(-len(self.rows) // self.shape.rows)

  @property
  def tokens(self) -> int:
    """Tokens that fill the rows; a shared prompt counts once."""
    return sum(
        len(segment.tokens)
        for members in self.rows
        for segment in packing.segments(self.rollouts, members)
    )

  def assemble(self, terms: Mapping[str, Sequence[Any]]) -> types.Batch:
    """Fills the arrays, for a power of two of micro-batches.

    So that what is jitted over whole mini-batches compiles for a handful of
    shapes.

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
