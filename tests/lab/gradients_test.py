"""Vectors in files, and the angles between them."""

import jax.numpy as jnp
import numpy as np

from jaxrl_llm.lab import gradients


def test_a_tree_is_laid_end_to_end():
  tree = {"a": jnp.array([[1.0, 2.0]]), "b": jnp.array(3.0)}
  found = gradients.flatten(tree)
  np.testing.assert_array_equal(found, np.float32([1, 2, 3]))
  assert abs(gradients.norm(found) - 14**0.5) < 1e-12


def test_cosines(tmp_path, monkeypatch):
  """(1, 0, 1) and (1, 1, 0): 1 / (√2 √2) = 1/2; read two entries at a time."""
  monkeypatch.setattr(gradients, "_CHUNK", 2)
  vectors = ([1, 0, 1], [1, 1, 0], [-2, 0, -2], [0, 0, 0])
  paths = []
  for number, vector in enumerate(vectors):
    paths.append(tmp_path / f"{number}.npy")
    gradients.save(paths[-1], np.float32(vector))
  nan = np.nan
  np.testing.assert_allclose(
      gradients.cosines([*paths, None]),
      [
          [1.0, 0.5, -1.0, nan, nan],
          [0.5, 1.0, -0.5, nan, nan],
          [-1.0, -0.5, 1.0, nan, nan],
          [nan] * 5,
          [nan] * 5,
      ],
      atol=1e-12,
  )
  assert not list(tmp_path.glob("*.beside"))
