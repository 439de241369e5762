"""Weights that are not trained, kept in less memory than float32 takes.

A frozen tree is the parameter tree with every matrix of a layer rounded, to
bits of a shorter dtype (see matmul.to_bits) or to Quantized, and with
"rounded_head" [V, D] in the place of "head". Norms and biases stay float32.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import matmul
from jaxrl_llm.models import weight_layout

Array = types.Array
PyTree = types.PyTree

STORAGES = ("float32", "bfloat16", "int8")
# The head's products read it whole, the embedding is read by rows: in
# bfloat16 the two want different forms (see matmul.to_bits).
HEAD = "rounded_head"
_LARGEST = 127


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Quantized:
  """Stacked matrices in 8 bits: weight = values · scales.

  A value is off by at most half a scale: 1/254 of the largest weight of its
  output channel.

  Attributes:
    values: int8 [L, *read, *made], −127 to 127.
    scales: float32 [L, 1…, *made], of each output channel.
  """

  values: Array
  scales: Array


def quantize(weights: Array, read: int) -> Quantized:
  """Rounds stacked matrices to 8 bits.

  Args:
    weights: float32 [L, *read, *made].
    read: number of axes that a product sums over.
  """
  axes = tuple(range(1, 1 + read))
  largest = jnp.max(jnp.abs(weights), axis=axes, keepdims=True)
  scales = jnp.where(largest > 0, largest / _LARGEST, 1.0)
  values = jnp.round(weights / scales).astype(jnp.int8)
  return Quantized(values, scales.astype(jnp.float32))


def weight(leaf: Array | Quantized, dtype: jnp.dtype) -> Array:
  """Returns a frozen matrix, of one layer or stacked, in `dtype`."""
  if isinstance(leaf, Quantized):
    return (leaf.values * leaf.scales).astype(dtype)
  return matmul.from_bits(leaf).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(
    inputs: Array, leaf: Array | Quantized, made: int, dtype: jnp.dtype
) -> Array:
  """Multiplies activations with a frozen matrix, which gets no gradient.

  Args:
    inputs: float32 [R, I].
    leaf: of one layer; I of its values are read for each that is made.
    made: O.
    dtype: compute dtype.

  Returns:
    float32 [R, O].
  """
  return plain_product(inputs, leaf, made, dtype)


def plain_product(
    inputs: Array, leaf: Array | Quantized, made: int, dtype: jnp.dtype
) -> Array:
  """Does what `product` does, differentiable forward (jax.jvp)."""
  matrix = jnp.reshape(weight(leaf, dtype), (-1, made))
  return matmul.einsum("ri,io->ro", inputs.astype(dtype), matrix)


def _product_fwd(inputs, leaf, made, dtype):
  return plain_product(inputs, leaf, made, dtype), leaf


def _product_bwd(made, dtype, leaf, cotangent):
  """Makes the matrix again: 8 bits are kept, not what they stand for."""
  matrix = jnp.reshape(weight(leaf, dtype), (-1, made))
  return matmul.einsum("ro,io->ri", cotangent.astype(dtype), matrix), None


product.defvjp(_product_fwd, _product_bwd)


def freeze(params: PyTree, storage: str | jnp.dtype) -> PyTree:
  """Makes a frozen tree of masters.

  Args:
    params: masters.
    storage: dtype of the matrices; with int8, embedding and head are
      bfloat16.
  """
  layers, tied = {}, "head" not in params
  for name, values in params["layers"].items():
    layers |= freeze_leaf(name, values, storage, tied)
  made = {"layers": layers}
  for name in params.keys() - {"layers"}:
    made |= freeze_leaf(name, params[name], storage, tied)
  return made


def freeze_leaf(
    name: str, values: Array, storage: str | jnp.dtype, tied: bool
) -> dict[str, Array | Quantized]:
  """Returns the leaves of a frozen tree that are made of one of the masters.

  Args:
    name: of the leaf.
    values: float32.
    storage: see `freeze`.
    tied: the head is the transposed embedding.
  """
  short = jnp.dtype(jnp.bfloat16 if storage == "int8" else storage)
  if name in weight_layout.VECTORS:
    return {name: values}
  if name == "head":
    return {HEAD: values.T.astype(short)}
  if name == "embedding" and tied:
    rounded = values.astype(short)
    return {name: matmul.to_bits(rounded), HEAD: rounded}
  if name != "embedding" and storage == "int8":
    return {name: quantize(values, weight_layout.read_axes(name))}
  return {name: matmul.to_bits(values.astype(short))}


def axes_like(params: PyTree, axes: PyTree) -> PyTree:
  """Returns the logical axes of a frozen tree.

  Args:
    params: the frozen tree, arrays or shapes.
    axes: of the masters.
  """

  def leaf(name, values):
    if not isinstance(values, Quantized):
      return axes["layers"][name]
    names = axes["layers"][name]
    read = weight_layout.read_axes(name)
    scales = (names[0], *(None,) * read, *names[1 + read :])
    return Quantized(names, scales)

  return {
      "embedding": axes["embedding"],
      "layers": {k: leaf(k, v) for k, v in params["layers"].items()},
      "final_norm": axes["final_norm"],
      HEAD: ("vocab", "embed"),
  }


def thaw(params: PyTree, tied: bool) -> PyTree:
  """Returns float32 masters with the values of a frozen tree."""
  layers = {
      name: values if name in weight_layout.VECTORS
      else weight(values, jnp.float32)
      for name, values in params["layers"].items()
  }
  made = {
      "embedding": weight(params["embedding"], jnp.float32),
      "layers": layers,
      "final_norm": params["final_norm"],
  }
  return made if tied else made | {"head": params[HEAD].T.astype(jnp.float32)}
