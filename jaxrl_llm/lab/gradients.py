"""Gradients as vectors in files, and the angles between them."""

from collections.abc import Sequence
import os
import pathlib

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import atomic

# Entries of each vector that are in memory at once.
_CHUNK = 1 << 22


def flatten(tree: types.PyTree) -> np.ndarray:
  """Lays the arrays of a tree end to end, float32 [D]."""
  leaves = jax.device_get(jax.tree.leaves(tree))
  return np.concatenate(
      [np.asarray(leaf, np.float32).reshape(-1) for leaf in leaves]
  )


def norm(vector: np.ndarray) -> float:
  """Euclidean norm, summed in float64."""
  return float(np.sqrt(np.sum(np.square(vector, dtype=np.float64))))


def save(path: pathlib.Path, vector: np.ndarray) -> None:
  """Writes a vector; it is there whole or not at all."""
  beside = path.with_name(path.name + ".beside")
  with beside.open("wb") as file:
    np.save(file, vector)
    file.flush()
    os.fsync(file.fileno())
  atomic.publish(beside, path)


def cosines(paths: Sequence[pathlib.Path | None]) -> np.ndarray:
  """Cosines of the angles between N vectors that lie in files.

  Args:
    paths: of `save`, all of one length; None for a vector that is not there.

  Returns:
    float64 [N, N]; NaN where a vector is 0 or not there.
  """
  count = len(paths)
  products = np.full((count, count), np.nan)
  there = [number for number in range(count) if paths[number] is not None]
  if there:
    vectors = [np.load(paths[number], mmap_mode="r") for number in there]
    products[np.ix_(there, there)] = _products(vectors)
  norms = np.sqrt(np.diag(products))
  norms[norms == 0] = np.nan
  return np.clip(products / np.outer(norms, norms), -1.0, 1.0)


def _products(vectors: Sequence[np.ndarray]) -> np.ndarray:
  """Inner products, float64 [N, N], read in chunks."""
  total = np.zeros((len(vectors), len(vectors)))
  for start in range(0, vectors[0].size, _CHUNK):
    rows = np.stack(
        [vector[start : start + _CHUNK] for vector in vectors]
    ).astype(np.float64)
    total += rows @ rows.T
  return total
