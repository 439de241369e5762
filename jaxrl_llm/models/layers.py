"""Parts without weights of their own: norms and rotary positions."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.models import config as config_lib

Array = types.Array


def rms_norm(inputs: Array, scale: Array, epsilon: float) -> Array:
  """Divides by the root mean square: x / √(mean x² + ε) · scale.

  Args:
    inputs: float32 [..., D].
    scale: float32 [D].
    epsilon: added to the mean square.

  Returns:
    float32 [..., D].
  """
  mean_square = jnp.mean(jnp.square(inputs), axis=-1, keepdims=True)
  return inputs * jax.lax.rsqrt(mean_square + epsilon) * scale


def rotary_frequencies(
    config: config_lib.ModelConfig, local: bool = False
) -> np.ndarray:
  """Returns the angle per position of each rotated pair, float64 [H / 2].

  Args:
    config: base and scaling.
    local: take those of local layers, where they have a base of their own.
  """
  exponents = np.arange(0, config.head_dim, 2) / config.head_dim
  if local and config.local_rope_theta is not None:
    return config.local_rope_theta**-exponents
  frequencies = config.rope_theta**-exponents
  scaling = config.rope_scaling
  if scaling.kind == "none":
    return frequencies
  if scaling.kind == "linear":
    return frequencies / scaling.factor
  if scaling.kind == "yarn":
    kept = _kept_by_yarn(config)
  else:
    wavelengths = 2 * np.pi / frequencies
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = (scaling.original_context_length / wavelengths - low) / (high - low)
    kept = np.clip(kept, 0.0, 1.0)
  # 0 where the whole factor applies, 1 where the frequency stays.
  return frequencies * (kept + (1 - kept) / scaling.factor)


def _kept_by_yarn(config):
  """Returns how much of each frequency stays (arXiv 2309.00071, eq. 22, 23).

  As its authors' code has it: the ramp is linear in the index of the pair,
  between whole indices.
  """
  scaling = config.rope_scaling
  last = config.head_dim - 1

  def index(rotations):
    length = scaling.original_context_length / (2 * math.pi * rotations)
    return config.head_dim * math.log(length) / (
        2 * math.log(config.rope_theta)
    )

  low = max(math.floor(index(scaling.fast_rotations)), 0)
  high = min(math.ceil(index(scaling.slow_rotations)), last)
  if low == high:
    high += 0.001  # The released code's way around a division by 0.
  ramp = (np.arange(config.head_dim // 2) - low) / (high - low)
  return 1 - np.clip(ramp, 0.0, 1.0)


def rotary_tables(
    config: config_lib.ModelConfig,
    positions: Array,
    dtype: jnp.dtype,
    local: bool = False,
) -> tuple[Array, Array]:
  """Returns cosines and sines, each `dtype` [..., H / 2].

  Args:
    config: gives the frequencies.
    positions: int32 [...], index of the token within its sequence.
    dtype: float32 or wider; angles lose their digits in less.
    local: see `rotary_frequencies`.
  """
  frequencies = jnp.asarray(rotary_frequencies(config, local), dtype)
  angles = positions[..., None].astype(dtype) * frequencies
  tables = jnp.cos(angles), jnp.sin(angles)
  scaling = config.rope_scaling
  if scaling.kind != "yarn" or (
      local and config.local_rope_theta is not None
  ):
    return tables
  magnitude = scaling.magnitude
  if magnitude is None:
    magnitude = 0.1 * math.log(scaling.factor) + 1.0
  return tuple(magnitude * table for table in tables)


def rotate(heads: Array, tables: tuple[Array, Array]) -> Array:
  """Turns pairs (i, i + H/2) by their angle (RoPE, arXiv 2104.09864 eq. 34).

  Args:
    heads: float32 [..., N, H].
    tables: cosines and sines, each [..., H / 2].

  Returns:
    float32 [..., N, H].
  """
  cosines, sines = (table[..., None, :] for table in tables)
  first, second = jnp.split(heads, 2, axis=-1)
  return jnp.concatenate(
      [first * cosines - second * sines, second * cosines + first * sines],
      axis=-1,
  )
