"""The network: blocks stacked over layers by a scan, and its weights."""

from collections.abc import Sequence
import functools
import itertools
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import attention
from jaxrl_llm.models import block as block_lib
from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import frozen
from jaxrl_llm.models import matmul
from jaxrl_llm.models import own_parts
from jaxrl_llm.models import sharding
from jaxrl_llm.models import weight_layout

Array = types.Array

# What a backward pass keeps of each block's inside, by Policy.remat; "none"
# recomputes nothing.
_KEPT = {
    "products": jax.checkpoint_policies.save_only_these_names(
        attention.KEPT, matmul.KEPT, "residual"
    ),
    "layers": jax.checkpoint_policies.nothing_saveable,
}


def _normal(key, shape, dtype=jnp.float32):
  """Draws embeddings.

  The barrier keeps XLA from merging the factor with one inside the draw: the
  numbers are the same in whatever program they are drawn.
  """
  drawn = jax.random.normal(key, shape, dtype)
  return 0.02 * jax.lax.optimization_barrier(drawn)


class Decoder(nn.Module):
  """Embedding, blocks and final norm; the head is applied by the caller.

  Attributes:
    config: sizes.
    dtype: compute dtype of products.
    remat: what the backward pass recomputes of each block: none, products
      (all but what products need) or layers (all).
    plain: use the twins that are differentiable forward (jax.jvp).
    adapter_scale: factor of what adapters make.
  """

  config: config_lib.ModelConfig
  dtype: Any
  remat: str = "none"
  plain: bool = False
  adapter_scale: float = 1.0

  @nn.compact
  def __call__(self, tokens: Array, context: block_lib.Context) -> Array:
    """Returns the normed last hidden state, float32 [B, T, D].

    Args:
      tokens: int32 [B, T].
      context: see block.Context.
    """
    config = self.config
    embedding = self.param(
        "embedding",
        nn.with_logical_partitioning(_normal, ("vocab", "embed")),
        (config.vocab_size, config.width),
    )
    if not config.tied_embeddings and self.is_initializing():
      self.param(
          "head",
          nn.with_logical_partitioning(_normal, ("embed", "vocab")),
          (config.width, config.vocab_size),
      )
    residual = _embed(config, own_parts.lookup(embedding, tokens), self.dtype)
    block = block_lib.Block
    if self.remat != "none":
      block = nn.remat(block, prevent_cse=False, policy=_KEPT[self.remat])
    stack = _scan(block, config.layers)
    stack = stack(
        config, self.dtype, self.plain, self.adapter_scale, name="layers"
    )
    residual, _ = stack(
        sharding.constrain_rows(residual), None, _local(config), context
    )
    zeros = config.block.offset_norms
    init = nn.initializers.zeros if zeros else nn.initializers.ones
    init = nn.with_logical_partitioning(init, ("norm",))
    scale = self.param("final_norm", init, (config.width,))
    return block_lib.norm(config, residual, scale)


def _scan(block, length):
  """Returns a module of `length` blocks with stacked weights."""
  return nn.scan(
      block,
      variable_axes=dict.fromkeys(
          ("params", block_lib.ROUNDED, block_lib.FROZEN, block_lib.ADAPTERS),
          0,
      ),
      split_rngs={"params": True},
      in_axes=(0, 0, nn.broadcast),
      length=length,
      metadata_params={nn.PARTITION_NAME: "layers"},
  )


def _local(config):
  """Returns which layers are local, bool [L]; None where none is."""
  return jnp.array(config.local_layers) if config.sliding_window else None


def _embed(config, rows, dtype):
  """Scales rows of the embedding, rounded as every copy of it is."""
  rows = matmul.from_bits(rows)
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
    stack: types.PyTree, dtype: jnp.dtype, parts: Sequence[int], spread: bool
) -> tuple[types.PyTree, ...]:
  """Lays stacked layers out for `serve`.

  Args:
    stack: "layers" of masters or of a frozen tree.
    dtype: compute dtype.
    parts: layers of each part; they add up to all.
    spread: keep the width spread over the axis fsdp.

  Returns:
    A tree per part: matrices [L', O, I] in the compute dtype, norms and biases
    as they are.
  """

  def turn(name, value):
    if name in weight_layout.VECTORS:
      return value
    value = frozen.weight(value, dtype)
    made = value.shape[2:] if name == "output" else value.shape[1:]
    value = jnp.swapaxes(jnp.reshape(value, (-1, math.prod(made))), 0, 1)
    return sharding.constrain(value, sharding.served(_SERVED[name], spread))

  # On a mesh layer by layer: turning what was gathered takes as much again.
  turned = own_parts.over_layers(
      lambda layer: {name: turn(name, value) for name, value in layer.items()},
      stack,
  )
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
    context: block_lib.Context,
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
    cache: per part, what block.Block reads, stacked over its layers, or None.
    context: see block.Context.

  Returns:
    float32 [..., D], and per part what block.Block returns, stacked.
  """
  dtype = weights["head"].dtype
  residual = sharding.constrain_rows(
      _embed(config, weights["embedding"][tokens], dtype)
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
  return block_lib.norm(config, residual, weights["final_norm"]), tuple(emitted)


# Under jit of its own, so that parts of one shape are traced once.
@functools.partial(jax.jit, static_argnames=("config", "dtype"))
def _serve_part(config, dtype, weights, residual, cache, local, context):
  """Applies the blocks of a part."""
  stack = _scan(block_lib.Block, weights["mlp_norm"].shape[0])
  return stack(config, dtype, serving=True).apply(
      {"params": weights}, residual, cache, local, context
  )
