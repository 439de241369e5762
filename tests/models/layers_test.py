"""layers.py against formulas written out slowly."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import presets
from jaxrl_llm.models import layers

CONFIG = presets.preset("tiny").replace(head_dim=16, rope_theta=500000.0)
LLAMA3 = config_lib.RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


def test_rms_norm_worked_by_hand():
  """x = (3, 4): mean square 12.5, root 3.5355; scale (1, 2)."""
  found = layers.rms_norm(
      jnp.array([3.0, 4.0]), jnp.array([1.0, 2.0]), epsilon=0.0
  )
  np.testing.assert_allclose(found, [0.848528, 2.262742], rtol=1e-6)


def _slow_frequency(pair, scaling):
  """Llama 3.1's rule, branch by branch as in its reference code."""
  frequency = 500000.0 ** (-2 * pair / 16)
  wavelength = 2 * math.pi / frequency
  if scaling.kind == "linear":
    return frequency / scaling.factor
  if scaling.kind == "none":
    return frequency
  if wavelength < 64 / 4.0:
    return frequency
  if wavelength > 64 / 1.0:
    return frequency / 8.0
  smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
  return (1 - smooth) * frequency / 8.0 + smooth * frequency


@pytest.mark.parametrize(
    "scaling",
    [
        config_lib.RopeScaling(),
        config_lib.RopeScaling("linear", 4.0),
        LLAMA3,
    ],
    ids=lambda scaling: scaling.kind,
)
def test_rotary_frequencies(scaling):
  found = layers.rotary_frequencies(CONFIG.replace(rope_scaling=scaling))
  expected = [_slow_frequency(pair, scaling) for pair in range(8)]
  np.testing.assert_allclose(found, expected, rtol=1e-12)
  if scaling.kind == "llama3":
    # All three branches are met: kept, blended, divided.
    shares = found / [_slow_frequency(p, config_lib.RopeScaling())
                      for p in range(8)]
    assert shares.max() == 1.0 and np.isclose(shares.min(), 1 / 8)
    assert np.any((shares > 0.13) & (shares < 0.99))


def test_rotation_depends_on_the_distance_only():
  query, key = jax.random.normal(jax.random.key(0), (2, 1, 16))

  def score(query_position, key_position):
    turned = [
        layers.rotate(
            heads,
            layers.rotary_tables(CONFIG, jnp.array(position), jnp.float32),
        )
        for heads, position in ((query, query_position), (key, key_position))
    ]
    return jnp.vdot(*turned)

  np.testing.assert_allclose(score(9, 4), score(25, 20), rtol=1e-5)
  assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_rotation_turns_halves_not_neighbours():
  """A quarter turn moves feature i to i + H/2 (Hugging Face's convention)."""
  heads = jnp.arange(4.0)[None]
  quarter = (jnp.zeros(2), jnp.ones(2))
  np.testing.assert_array_equal(
      layers.rotate(heads, quarter), [[-2.0, -3.0, 0.0, 1.0]]
  )
