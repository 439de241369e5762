"""The network: one block, stacked over layers by a scan, and its weights."""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
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
    lengths: int32 [S], tokens that the cache holds, while decoding.
    index: int32, place of the new token among the recent ones, likewise.
  """

  tables: tuple[Array, Array]
  segment_ids: Array | None = None
  parent_ids: Array | None = None
  lengths: Array | None = None
  index: Array | None = None


class Block(nn.Module):
  """Attention and MLP of one Llama layer.

  Attributes:
    config: sizes.
    dtype: compute dtype of products.
    plain: use the twins that are differentiable forward (jax.jvp).
    serving: read the weights of `serving_layers`, and return the keys and
      values made here.
  """

  config: config_lib.ModelConfig
  dtype: Any
  plain: bool = False
  serving: bool = False

  def _multiply(self, inputs, name, read, made, axes):
    """Multiplies by the weight `name`: float32 [..., *read] → [..., *made]."""
    if self.serving:
      outputs = matmul.turned_product(
          jnp.reshape(inputs, (-1, math.prod(read))),
          self.get_variable("params", name),
      )
      return jnp.reshape(outputs, (*inputs.shape[: -len(read)], *made))
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
      cache: tuple[Array, ...] | None,
      context: Context,
  ) -> tuple[Array, tuple[Array, Array] | None]:
    """Applies the block.

    Args:
      residual: float32 [B, T, D], or [S, D] with a cache.
      cache: keys [S, K, H, C] and values [S, K, C, H] before the recent
        tokens, in the compute dtype, and bits of the recent ones, each
        [S, K, R, H]; or None.
      context: see Context.

    Returns:
      The new residual stream, and while serving the bits of the keys and
      values: of the recent tokens with a cache, else [B, T, K, H].
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
    if self.serving:
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
      emitted = tuple(
          jax.lax.dynamic_update_index_in_dim(recent, new, context.index, 2)
          for recent, new in zip(cache[2:], emitted)
      )
      attended = attention.cached(
          query.astype(self.dtype),
          *cache[:2],
          context.lengths,
          *map(matmul.from_bits, emitted),
          context.index,
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
  """

  config: config_lib.ModelConfig
  dtype: Any
  remat: str = "none"
  plain: bool = False

  @nn.compact
  def __call__(self, tokens: Array, context: Context) -> Array:
    """Returns the normed last hidden state, float32 [B, T, D].

    Args:
      tokens: int32 [B, T].
      context: see Context.
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
    residual = _embed(embedding, tokens, self.dtype)
    block = Block
    if self.remat != "none":
      block = nn.remat(Block, prevent_cse=False, policy=_KEPT[self.remat])
    stack = _scan(block, config.layers)
    residual, _ = stack(config, self.dtype, self.plain, name="layers")(
        sharding.constrain_rows(residual), None, context
    )
    ones = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
    scale = self.param("final_norm", ones, (config.width,))
    return layers.rms_norm(residual, scale, config.norm_epsilon)


def _scan(block, length):
  """Returns a module of `length` blocks with stacked weights."""
  return nn.scan(
      block,
      variable_axes={"params": 0, ROUNDED: 0},
      split_rngs={"params": True},
      in_axes=(0, nn.broadcast),
      length=length,
      metadata_params={nn.PARTITION_NAME: "layers"},
  )


def _embed(embedding, tokens, dtype):
  """Returns rows of the embedding, rounded as every copy of it is."""
  # Gathered over the width beforehand, like every other weight.
  table = sharding.constrain(embedding, ("vocab", None))
  rows = matmul.from_bits(table[tokens])
  return matmul.round_through(rows, dtype).astype(matmul.sum_dtype(dtype))


# Logical axes of the matrices [O, I] of `serving_layers`.
_SERVED = {
    "query": ("heads", "embed"),
    "key": ("kv_heads", "embed"),
    "value": ("kv_heads", "embed"),
    "output": ("embed", "heads"),
    "gate": ("mlp", "embed"),
    "up": ("mlp", "embed"),
    "down": ("embed", "mlp"),
}


def serving_layers(
    stack: types.PyTree, dtype: jnp.dtype, parts: Sequence[int]
) -> tuple[types.PyTree, ...]:
  """Lays stacked layers out for `serve`.

  Args:
    stack: "layers" of the parameters.
    dtype: compute dtype.
    parts: layers of each part; they add up to all.

  Returns:
    A tree per part: matrices [L', O, I] in the compute dtype, norms [L', D].
  """

  def turn(name, value):
    if value.ndim == 2:  # Norms.
      return value
    made = value.shape[3:] if name == "output" else value.shape[2:]
    matrix = (value.shape[0], -1, math.prod(made))
    value = matmul.from_bits(value).astype(dtype)
    value = jnp.swapaxes(jnp.reshape(value, matrix), 1, 2)
    return sharding.constrain(value, ("layers", *_SERVED[name]))

  turned = {name: turn(name, value) for name, value in stack.items()}
  ends = list(itertools.accumulate(parts))
  return tuple(
      {name: value[end - part : end] for name, value in turned.items()}
      for part, end in zip(parts, ends)
  )


def serve(
    config: config_lib.ModelConfig,
    weights: types.PyTree,
    tokens: Array,
    cache: Sequence[tuple[Array, ...] | None],
    context: Context,
) -> tuple[Array, tuple[tuple[Array, Array], ...]]:
  """Does what Decoder does, and gives the keys and values, for sampling.

  A scan over layers copies the weights and the cache of each, in XLA on CPUs
  as much memory traffic again as the step itself. A part of one layer is
  compiled without a scan and reads both where they lie; where compiling every
  layer takes too long, one part holds them all.

  Args:
    config: sizes.
    weights: of `Policy.serving_copy`.
    tokens: int32 [B, T], or [S] with a cache.
    cache: per part, what Block reads, stacked over its layers, or None.
    context: see Context.

  Returns:
    float32 [..., D], and per part what Block returns, stacked.
  """
  dtype = weights["head"].dtype
  residual = sharding.constrain_rows(
      _embed(weights["embedding"], tokens, dtype)
  )
  emitted = []
  for part, held in zip(weights["parts"], cache, strict=True):
    residual, made = _serve_part(config, dtype, part, residual, held, context)
    emitted.append(made)
  hidden = layers.rms_norm(residual, weights["final_norm"], config.norm_epsilon)
  return hidden, tuple(emitted)


# Under jit of its own, so that parts of one shape are traced once.
@functools.partial(jax.jit, static_argnames=("config", "dtype"))
def _serve_part(config, dtype, weights, residual, cache, context):
  """Applies the blocks of a part."""
  stack = _scan(Block, weights["mlp_norm"].shape[0])
  return stack(config, dtype, serving=True).apply(
      {"params": weights}, residual, cache, context
  )
