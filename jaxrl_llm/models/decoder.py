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
from jaxrl_llm.models import scores
from jaxrl_llm.models import sharding
from jaxrl_llm.models import weight_layout

Array = types.Array

# Collection of the rounded weights as bits, with the tree of `params` less
# its norms. Without it each use rounds its own weight.
ROUNDED = "rounded"

# Reads more tokens than any row has.
_NO_WINDOW = 2**30

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
    scale = self._vector(name, inputs.shape[-1:], ("norm",))
    return _norm(self.config, inputs, scale)

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
    return attention.cached(
        query.astype(self.dtype),
        *cache[:2],
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
        tokens, in the compute dtype, and bits of the recent ones, each
        [S, K, R, H]; or None.
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
    residual = _embed(config, embedding, tokens, self.dtype)
    block = Block
    if self.remat != "none":
      block = nn.remat(Block, prevent_cse=False, policy=_KEPT[self.remat])
    stack = _scan(block, config.layers)
    residual, _ = stack(config, self.dtype, self.plain, name="layers")(
        sharding.constrain_rows(residual), None, _local(config), context
    )
    zeros = config.block.offset_norms
    init = nn.initializers.zeros if zeros else nn.initializers.ones
    init = nn.with_logical_partitioning(init, ("norm",))
    scale = self.param("final_norm", init, (config.width,))
    return _norm(config, residual, scale)


def _scan(block, length):
  """Returns a module of `length` blocks with stacked weights."""
  return nn.scan(
      block,
      variable_axes={"params": 0, ROUNDED: 0},
      split_rngs={"params": True},
      in_axes=(0, 0, nn.broadcast),
      length=length,
      metadata_params={nn.PARTITION_NAME: "layers"},
  )


def _local(config):
  """Returns which layers are local, bool [L]; None where none is."""
  return jnp.array(config.local_layers) if config.sliding_window else None


def _norm(config, inputs, scale):
  """Norms the last axis."""
  if config.block.offset_norms:
    scale = 1.0 + scale
  return layers.rms_norm(inputs, scale, config.norm_epsilon)


def _embed(config, embedding, tokens, dtype):
  """Returns rows of the embedding, rounded as every copy of it is."""
  # Gathered over the width beforehand, like every other weight.
  table = sharding.constrain(embedding, ("vocab", None))
  rows = matmul.from_bits(table[tokens])
  rows = matmul.round_through(rows, dtype).astype(matmul.sum_dtype(dtype))
  return rows * config.width**0.5 if config.block.scaled_embedding else rows


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
    A tree per part: matrices [L', O, I] in the compute dtype, norms and biases
    as they are.
  """

  def turn(name, value):
    if name in weight_layout.VECTORS:
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
      _embed(config, weights["embedding"], tokens, dtype)
  )
  emitted = []
  start, local = 0, _local(config)
  for part, held in zip(weights["parts"], cache, strict=True):
    end = start + part["mlp_norm"].shape[0]
    kinds = None if local is None else local[start:end]
    residual, made = _serve_part(
        config, dtype, part, residual, held, kinds, context
    )
    emitted.append(made)
    start = end
  return _norm(config, residual, weights["final_norm"]), tuple(emitted)


# Under jit of its own, so that parts of one shape are traced once.
@functools.partial(jax.jit, static_argnames=("config", "dtype"))
def _serve_part(config, dtype, weights, residual, cache, local, context):
  """Applies the blocks of a part."""
  stack = _scan(Block, weights["mlp_norm"].shape[0])
  return stack(config, dtype, serving=True).apply(
      {"params": weights}, residual, cache, local, context
  )
