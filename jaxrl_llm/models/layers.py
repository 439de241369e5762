"""Parts without weights of their own: norms and rotary positions."""

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


def rotary_frequencies(config: config_lib.ModelConfig) -> np.ndarray:
  """Returns the angle per position of each rotated pair, float64 [H / 2]."""
  exponents = np.arange(0, config.head_dim, 2) / config.head_dim
  frequencies = config.rope_theta**-exponents
  scaling = config.rope_scaling
  if scaling.kind == "none":
    return frequencies
  if scaling.kind == "linear":
    return frequencies / scaling.factor
  wavelengths = 2 * np.pi / frequencies
  low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
  # 0 where the whole factor applies, 1 where the frequency stays.
  kept = (scaling.original_context_length / wavelengths - low) / (high - low)
  kept = np.clip(kept, 0.0, 1.0)
  return frequencies * (kept + (1 - kept) / scaling.factor)


def rotary_tables(
    config: config_lib.ModelConfig, positions: Array, dtype: jnp.dtype
) -> tuple[Array, Array]:
  """Returns cosines and sines, each `dtype` [..., H / 2].

  Args:
    config: gives the frequencies.
    positions: int32 [...], index of the token within its sequence.
    dtype: float32 or wider; angles lose their digits in less.
  """
  frequencies = jnp.asarray(rotary_frequencies(config), dtype)
  angles = positions[..., None].astype(dtype) * frequencies
  return jnp.cos(angles), jnp.sin(angles)


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
