"""The network: one block, stacked over layers by a scan, and its weights."""

import dataclasses
import math
from typing import Any

from flax import linen as nn
import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import attention
from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import layers
from jaxrl_llm.models import matmul
from jaxrl_llm.models import sharding

Array = types.Array

# Collection of the rounded weights as bits, with the tree of `params` less
# its norms. Without it each use rounds its own weight.
ROUNDED = "rounded"

# What a backward pass keeps of each block's inside, by Policy.remat; "none"
# recomputes nothing.
_KEPT = {
    "products": jax.checkpoint_policies.save_only_these_names(
        attention.KEPT, matmul.KEPT, "residual"
    ),
    "layers": jax.checkpoint_policies.nothing_saveable,
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
  """What every block reads beside the residual stream.

  Attributes:
    tables: rotary cosines and sines, each float32 [..., H / 2].
    segment_ids: int32 [B, T] of packed rows; None while decoding.
    parent_ids: likewise, the segment that each continues.
    positions: int32 [S] of the new tokens while decoding.
  """

  tables: tuple[Array, Array]
  segment_ids: Array | None = None
  parent_ids: Array | None = None
  positions: Array | None = None


class Block(nn.Module):
  """Attention and MLP of one Llama layer.

  Attributes:
    config: sizes.
    dtype: compute dtype of products.
    plain: use the twins that are differentiable forward (jax.jvp).
    emit: return the keys and values made here.
  """

  config: config_lib.ModelConfig
  dtype: Any
  plain: bool = False
  emit: bool = False

  def _multiply(self, inputs, name, read, made, axes):
    """Multiplies by the weight `name`: float32 [..., *read] → [..., *made]."""
    fan_in = range(len(read))
    fan_out = range(len(read), len(read) + len(made))
    init = nn.initializers.variance_scaling(
        1.0, "fan_in", "normal", fan_in, fan_out
    )
    master = self.param(
        name, nn.with_logical_partitioning(init, axes), (*read, *made)
    )
    if self.has_variable(ROUNDED, name):
      bits = self.get_variable(ROUNDED, name)
    else:
      bits = matmul.to_bits(master.astype(self.dtype))
    multiply = matmul.plain_product if self.plain else matmul.product
    # Two axes each: a product over (head, head_dim) would transpose weights.
    matrix = (math.prod(read), math.prod(made))
    outputs = multiply(
        jnp.reshape(inputs, (-1, matrix[0])),
        jnp.reshape(bits, matrix),
        jnp.reshape(master, matrix),
    )
    return jnp.reshape(outputs, (*inputs.shape[: -len(read)], *made))

  def _norm(self, inputs, name):
    ones = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
    scale = self.param(name, ones, (self.config.width,))
    return layers.rms_norm(inputs, scale, self.config.norm_epsilon)

  @nn.compact
  def __call__(
      self,
      residual: Array,
      cache: tuple[Array, Array] | None,
      context: Context,
  ) -> tuple[Array, tuple[Array, Array] | None]:
    """Applies the block.

    Args:
      residual: float32 [B, T, D], or [S, D] with a cache.
      cache: bits of keys [S, K, H, C] and values [S, K, C, H] before the
        new token, or None.
      context: see Context.

    Returns:
      The new residual stream, and with `emit` or a cache the bits of the new
      keys and values [..., K, H].
    """
    config = self.config
    d, f, h = config.width, config.mlp_width, config.head_dim
    normed = self._norm(residual, "attention_norm")
    query, key, value = (
        self._multiply(
            normed, name, (d,), (heads, h), ("embed", axis, "head_dim")
        )
        for name, heads, axis in (
            ("query", config.heads, "heads"),
            ("key", config.kv_heads, "kv_heads"),
            ("value", config.kv_heads, "kv_heads"),
        )
    )
    query = layers.rotate(query, context.tables)
    key = layers.rotate(key, context.tables)
    emitted = None
    if self.emit or cache is not None:
      emitted = tuple(
          matmul.to_bits(x.astype(self.dtype)) for x in (key, value)
      )
    if cache is None:
      attended = attention.causal(
          query,
          key,
          value,
          context.segment_ids,
          context.parent_ids,
          self.dtype,
          self.plain,
      )
    else:
      attended = attention.cached(
          query.astype(self.dtype),
          *map(matmul.from_bits, (*emitted, *cache)),
          context.positions,
      )
    residual += self._multiply(
        attended, "output", (config.heads, h), (d,),
        ("heads", "head_dim", "embed"),
    )
    residual = sharding.constrain_rows(residual)
    residual = ad_checkpoint.checkpoint_name(residual, "residual")
    normed = self._norm(residual, "mlp_norm")
    gate, up = (
        self._multiply(normed, name, (d,), (f,), ("embed", "mlp"))
        for name in ("gate", "up")
    )
    round_ = matmul.round_through if self.plain else matmul.keep_rounded
    gate, up = (round_(x, self.dtype) for x in (gate, up))
    residual += self._multiply(
        nn.silu(gate) * up, "down", (f,), (d,), ("mlp", "embed")
    )
    return sharding.constrain_rows(residual), emitted


class Decoder(nn.Module):
  """Embedding, blocks and final norm; the head is applied by the caller.

  Attributes:
    config: sizes.
    dtype: compute dtype of products.
    remat: what the backward pass recomputes of each block: none, products
      (all but what products need) or layers (all).
    plain: use the twins that are differentiable forward (jax.jvp).
    emit: return keys and values.
  """

  config: config_lib.ModelConfig
  dtype: Any
  remat: str = "none"
  plain: bool = False
  emit: bool = False

  @nn.compact
  def __call__(
      self,
      tokens: Array,
      cache: tuple[Array, Array] | None,
      context: Context,
  ) -> tuple[Array, tuple[Array, Array] | None]:
    """Returns the normed last hidden state and what the blocks emit.

    Args:
      tokens: int32 [B, T], or [S] with a cache.
      cache: bits of keys [L, S, K, H, C] and values [L, S, K, C, H], or
        None.
      context: see Context.

    Returns:
      float32 [..., D]; bits of keys and values [L, ..., K, H], or None.
    """
    config = self.config
    normal = nn.initializers.normal(0.02)
    embedding = self.param(
        "embedding",
        nn.with_logical_partitioning(normal, ("vocab", "embed")),
        (config.vocab_size, config.width),
    )
    if not config.tied_embeddings:
      self.param(
          "head",
          nn.with_logical_partitioning(normal, ("embed", "vocab")),
          (config.width, config.vocab_size),
      )
    # Rounded as the decoder's copy is, so that both read the same rows.
    rows = matmul.from_bits(embedding[tokens])
    rows = matmul.round_through(rows, self.dtype)
    residual = rows.astype(matmul.sum_dtype(self.dtype))
    block = Block
    if self.remat != "none":
      block = nn.remat(Block, prevent_cse=False, policy=_KEPT[self.remat])
    stack = nn.scan(
        block,
        variable_axes={"params": 0, ROUNDED: 0},
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast),
        length=config.layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    residual, emitted = stack(
        config, self.dtype, self.plain, self.emit, name="layers"
    )(sharding.constrain_rows(residual), cache, context)
    ones = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
    scale = self.param("final_norm", ones, (config.width,))
    hidden = layers.rms_norm(residual, scale, config.norm_epsilon)
    return hidden, emitted
