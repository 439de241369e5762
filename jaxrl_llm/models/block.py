"""One layer of the network: attention and MLP, of any family."""

import dataclasses
import functools
import math
from typing import Any

from flax import linen as nn
import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import attention
from jaxrl_llm.models import cached_attention
from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import frozen
from jaxrl_llm.models import layers
from jaxrl_llm.models import matmul
from jaxrl_llm.models import scores
from jaxrl_llm.models import sharding

Array = types.Array

# Collection of the rounded weights as bits, with the tree of `params` less
# its norms. Without it each use rounds its own weight.
ROUNDED = "rounded"
# Collections of matrices that are not trained, and of adapters (see lora.py).
FROZEN = "frozen"
ADAPTERS = "adapters"

# Reads more tokens than any row has.
_NO_WINDOW = 2**30


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
  """What every block reads beside the residual stream.

  Attributes:
    tables: rotary cosines and sines, each float32 [..., H / 2].
    local_tables: those of local layers; None where no layer is local.
    segment_ids: int32 [B, T] of packed rows; None while decoding.
    parent_ids: likewise, the segment that each continues.
    lengths: int32 [S], tokens that the cache holds, while decoding.
    index: int32, place of the new token among the recent ones, likewise.
    positions: int32 [B, T] of packed rows; None where no layer is local.
  """

  tables: tuple[Array, Array]
  local_tables: tuple[Array, Array] | None = None
  segment_ids: Array | None = None
  parent_ids: Array | None = None
  lengths: Array | None = None
  index: Array | None = None
  positions: Array | None = None


class Block(nn.Module):
  """Attention and MLP of one layer, of any family.

  Attributes:
    config: sizes.
    dtype: compute dtype of products.
    plain: use the twins that are differentiable forward (jax.jvp).
    adapter_scale: factor of what adapters make.
    serving: read the weights of `serving_layers`, and return the keys and
      values made here.
  """

  config: config_lib.ModelConfig
  dtype: Any
  plain: bool = False
  adapter_scale: float = 1.0
  serving: bool = False

  def _multiply(self, inputs, name, read, made, axes):
    """Multiplies by the weight `name`: float32 [..., *read] → [..., *made]."""
    if self.serving:
      outputs = matmul.turned_product(
          jnp.reshape(inputs, (-1, math.prod(read))),
          self.get_variable("params", name),
      )
      return jnp.reshape(outputs, (*inputs.shape[: -len(read)], *made))
    # Two axes each: a product over (head, head_dim) would transpose weights.
    matrix = (math.prod(read), math.prod(made))
    flat = jnp.reshape(inputs, (-1, matrix[0]))
    if self.has_variable(FROZEN, name):
      multiply = frozen.plain_product if self.plain else frozen.product
      leaf = self.get_variable(FROZEN, name)
      outputs = multiply(flat, leaf, matrix[1], self.dtype)
    else:
      outputs = self._multiply_master(flat, name, read, made, axes)
    if self.has_variable(ADAPTERS, f"{name}_a"):
      a, b = (
          self.get_variable(ADAPTERS, f"{name}_{part}") for part in "ab"
      )
      a = jnp.reshape(a, (matrix[0], -1))
      b = jnp.reshape(b, (-1, matrix[1]))
      outputs += self.adapter_scale * self._product(self._product(flat, a), b)
    return jnp.reshape(outputs, (*inputs.shape[: -len(read)], *made))

  def _multiply_master(self, flat, name, read, made, axes):
    """Multiplies float32 [R, I] by a weight that is trained."""
    fan_in = range(len(read))
    fan_out = range(len(read), len(read) + len(made))
    init = nn.initializers.variance_scaling(
        1.0, "fan_in", "normal", fan_in, fan_out
    )
    master = self.param(
        name, nn.with_logical_partitioning(init, axes), (*read, *made)
    )
    bits = None
    matrix = (math.prod(read), math.prod(made))
    if self.has_variable(ROUNDED, name):
      bits = jnp.reshape(self.get_variable(ROUNDED, name), matrix)
    return self._product(flat, jnp.reshape(master, matrix), bits)

  def _product(self, inputs, master, bits=None):
    if bits is None:
      bits = matmul.to_bits(master.astype(self.dtype))
    multiply = matmul.plain_product if self.plain else matmul.product
    return multiply(inputs, bits, master)

  def _norm(self, inputs, name):
    scale = self._vector(name, inputs.shape[-1:], ("norm",))
    return norm(self.config, inputs, scale)

  def _vector(self, name, shape, axes):
    """Returns a parameter that is not rounded: a norm's weight or a bias."""
    ones = name.endswith("norm") and not self.config.block.offset_norms
    init = nn.initializers.ones if ones else nn.initializers.zeros
    return self.param(name, nn.with_logical_partitioning(init, axes), shape)

  def _added(self, outputs, name):
    """Returns what attention or MLP adds to the residual stream."""
    if not self.config.block.post_norms:
      return outputs
    # Kept, or the backward pass of the norm would repeat the product.
    outputs = ad_checkpoint.checkpoint_name(outputs, "residual")
    return self._norm(outputs, name)

  def _heads(self, normed, tables):
    """Returns queries, keys and values, rotated."""
    config = self.config
    d, h = config.width, config.head_dim
    made = {}
    for name, axis, count in (
        ("query", "heads", config.heads),
        ("key", "kv_heads", config.kv_heads),
        ("value", "kv_heads", config.kv_heads),
    ):
      axes = (axis, "head_dim")
      part = self._multiply(normed, name, (d,), (count, h), ("embed", *axes))
      if config.block.biased_heads:
        part += self._vector(f"{name}_bias", (count, h), axes)
      if name != "value":
        if config.block.normed_heads:
          part = self._norm(part, f"{name}_norm")
        part = layers.rotate(part, tables)
      made[name] = part
    return made.values()

  def _attend(self, normed, cache, context, local):
    """Returns float32 [..., N, H], and what `__call__` emits."""
    config = self.config
    tables, window = context.tables, None
    if local is not None:
      tables = jax.tree.map(
          functools.partial(jnp.where, local), context.local_tables, tables
      )
      window = jnp.where(local, config.sliding_window, _NO_WINDOW)
    query, key, value = self._heads(normed, tables)
    scale = config.score_divisor and config.score_divisor**-0.5
    options = {
        "rule": scores.Rule(scale, config.score_softcap), "window": window
    }
    emitted = None
    if self.serving:
      emitted = tuple(
          matmul.to_bits(x.astype(self.dtype)) for x in (key, value)
      )
    if cache is None:
      return attention.causal(
          query,
          key,
          value,
          context.segment_ids,
          context.parent_ids,
          self.dtype,
          self.plain,
          positions=context.positions,
          **options,
      ), emitted
    emitted = tuple(
        jax.lax.dynamic_update_index_in_dim(recent, new, context.index, 2)
        for recent, new in zip(cache[2:], emitted)
    )
    return cached_attention.attend(
        query.astype(self.dtype),
        *map(matmul.from_bits, cache[:2]),
        context.lengths,
        *map(matmul.from_bits, emitted),
        context.index,
        **options,
    ), emitted

  @nn.compact
  def __call__(
      self,
      residual: Array,
      cache: tuple[Array, ...] | None,
      local: Array | None,
      context: Context,
  ) -> tuple[Array, tuple[Array, Array] | None]:
    """Applies the block.

    Args:
      residual: float32 [B, T, D], or [S, D] with a cache.
      cache: keys [S, K, H, C] and values [S, K, C, H] before the recent
        tokens, in the compute dtype or as bits, and bits of the recent ones,
        each [S, K, R, H]; or None.
      local: bool, whether the layer reads the window alone; None where no
        layer does.
      context: see Context.

    Returns:
      The new residual stream, and while serving the bits of the keys and
      values: of the recent tokens with a cache, else [B, T, K, H].
    """
    config = self.config
    d, f, h = config.width, config.mlp_width, config.head_dim
    normed = self._norm(residual, "attention_norm")
    attended, emitted = self._attend(normed, cache, context, local)
    made = self._multiply(
        attended, "output", (config.heads, h), (d,),
        ("heads", "head_dim", "embed"),
    )
    residual += self._added(made, "attention_post_norm")
    residual = sharding.constrain_rows(residual)
    residual = ad_checkpoint.checkpoint_name(residual, "residual")
    normed = self._norm(residual, "mlp_norm")
    gate, up = (
        self._multiply(normed, name, (d,), (f,), ("embed", "mlp"))
        for name in ("gate", "up")
    )
    round_ = matmul.round_through if self.plain else matmul.keep_rounded
    gate, up = (round_(x, self.dtype) for x in (gate, up))
    activation = nn.gelu if config.block.gelu else nn.silu
    made = self._multiply(
        activation(gate) * up, "down", (f,), (d,), ("mlp", "embed")
    )
    residual += self._added(made, "mlp_post_norm")
    return sharding.constrain_rows(residual), emitted


def norm(
    config: config_lib.ModelConfig, inputs: Array, scale: Array
) -> Array:
  """Norms the last axis by the family's rule."""
  if config.block.offset_norms:
    scale = 1.0 + scale
  return layers.rms_norm(inputs, scale, config.norm_epsilon)
