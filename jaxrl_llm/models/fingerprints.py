"""A name for a set of weights, made of the weights."""

import hashlib

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.models import placement

PyTree = types.PyTree


def of_weights(params: PyTree) -> str:
  """Hashes names, shapes and values of the weights; 32 hex digits.

  Values are hashed as float32, so a copy of the same numbers in another
  place, layout or file gives the same fingerprint.
  """
  digest = hashlib.sha256()
  for path, value in jax.tree_util.tree_leaves_with_path(params):
    array = np.ascontiguousarray(placement.whole(value), np.float32)
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    digest.update(f"{name}{array.shape}".encode())
    digest.update(array.tobytes())
  return digest.hexdigest()[:32]
