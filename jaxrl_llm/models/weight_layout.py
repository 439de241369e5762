"""Which tensor of a weight file is which array of the parameter tree.

A file holds one tensor per layer, stored [out, in] by PyTorch's convention; the
tree stacks layers on axis 0, stores [in, out] and splits attention heads into
an axis of their own. Rotary embedding pairs feature i with i + H/2 in both.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_llm.models import config as model_config

Index = tuple[slice, ...]

# Leading axes of a parameter (of one layer) that its product sums over; a leaf
# that is not named here is stored as it is.
_INPUT_AXES = {
    "layers/query": 1,
    "layers/key": 1,
    "layers/value": 1,
    "layers/output": 2,
    "layers/gate": 1,
    "layers/up": 1,
    "layers/down": 1,
    "head": 1,
}

# Leaves that no product reads: norms and biases, never rounded.
VECTORS = frozenset({
    "attention_norm", "query_bias", "key_bias", "value_bias", "query_norm",
    "key_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm",
    "final_norm",
})

_HUGGING_FACE_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "layers/attention_norm": "model.layers.{layer}.input_layernorm.weight",
    "layers/query": "model.layers.{layer}.self_attn.q_proj.weight",
    "layers/key": "model.layers.{layer}.self_attn.k_proj.weight",
    "layers/value": "model.layers.{layer}.self_attn.v_proj.weight",
    "layers/output": "model.layers.{layer}.self_attn.o_proj.weight",
    "layers/mlp_norm": (
        "model.layers.{layer}.post_attention_layernorm.weight"
    ),
    "layers/gate": "model.layers.{layer}.mlp.gate_proj.weight",
    "layers/up": "model.layers.{layer}.mlp.up_proj.weight",
    "layers/down": "model.layers.{layer}.mlp.down_proj.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "layers/query_bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "layers/key_bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "layers/value_bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "layers/query_norm": "model.layers.{layer}.self_attn.q_norm.weight",
    "layers/key_norm": "model.layers.{layer}.self_attn.k_norm.weight",
}
# With norms after the parts, the name of Llama's second one means another.
_POST_NORM_NAMES = {
    "layers/attention_post_norm": (
        "model.layers.{layer}.post_attention_layernorm.weight"
    ),
    "layers/mlp_norm": (
        "model.layers.{layer}.pre_feedforward_layernorm.weight"
    ),
    "layers/mlp_post_norm": (
        "model.layers.{layer}.post_feedforward_layernorm.weight"
    ),
}


def hugging_face_names(config: model_config.ModelConfig) -> dict[str, str]:
  """Returns leaf → name in a Hugging Face folder, {layer} for the layer."""
  extra = _POST_NORM_NAMES if config.block.post_norms else {}
  return _HUGGING_FACE_NAMES | extra


def read_axes(name: str) -> int:
  """Returns how many axes of a layer's matrix its product sums over."""
  return _INPUT_AXES[f"layers/{name}"]


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One tensor of a file and its place in the parameter tree.

  Attributes:
    name: in the file.
    leaf: slash-separated path in the parameter tree.
    layer: index on axis 0 of the leaf; None for a leaf that is not stacked.
    shape: of the parameter, without the layer axis.
  """

  name: str
  leaf: str
  layer: int | None
  shape: tuple[int, ...]

  @property
  def _groups(self) -> tuple[Sequence[int], ...]:
    """Axes of the parameter that each axis of the file's array flattens."""
    axes = range(len(self.shape))
    if self.leaf.rpartition("/")[2] in VECTORS:
      return (axes,)
    inputs = _INPUT_AXES.get(self.leaf, 0)
    if not inputs:
      return tuple((axis,) for axis in axes)
    return axes[inputs:], axes[:inputs]

  @property
  def file_shape(self) -> tuple[int, ...]:
    """Shape in the file: [out, in] for matrices of products, else flat."""
    return tuple(
        math.prod(self.shape[axis] for axis in group)
        for group in self._groups
    )

  def file_index(self, index: Index) -> Index:
    """Says where in the file's array a part of the parameter lies.

    Of axes that are flattened, the first is cut and the others are whole.

    Args:
      index: slices of the parameter of this layer, in steps of 1.
    """
    spans = []
    for first, *others in self._groups:
      taken = range(self.shape[first])[index[first]]
      stride = math.prod(self.shape[axis] for axis in others)
      spans.append(slice(taken.start * stride, taken.stop * stride))
    return tuple(spans)

  def to_parameter(self, array: np.ndarray, index: Index) -> np.ndarray:
    """Turns what lies at `file_index(index)` into the part of the parameter.

    Args:
      array: of the file.
      index: slices of the parameter of this layer.
    """
    cut = [group[0] for group in self._groups]
    sizes = [
        len(range(size)[part]) if axis in cut else size
        for axis, (size, part) in enumerate(zip(self.shape, index))
    ]
    left = tuple(
        slice(None) if axis in cut else part for axis, part in enumerate(index)
    )
    turned = array.T if self.leaf in _INPUT_AXES else array
    return turned.reshape(sizes)[left]

  def to_file(self, parameter: np.ndarray) -> np.ndarray:
    """Turns the parameter of this layer into the file's array."""
    if self.leaf not in _INPUT_AXES:
      return parameter.reshape(self.file_shape)
    return parameter.reshape(self.file_shape[::-1]).T


def shapes(config: model_config.ModelConfig) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every leaf, layers stacked on axis 0."""
  n_layers, width, mlp = config.layers, config.width, config.mlp_width
  kv_shape = (n_layers, width, config.kv_heads, config.head_dim)
  leaves = {
      "embedding": (config.vocab_size, width),
      "layers/attention_norm": (n_layers, width),
      "layers/query": (n_layers, width, config.heads, config.head_dim),
      "layers/key": kv_shape,
      "layers/value": kv_shape,
      "layers/output": (n_layers, config.heads, config.head_dim, width),
      "layers/mlp_norm": (n_layers, width),
      "layers/gate": (n_layers, width, mlp),
      "layers/up": (n_layers, width, mlp),
      "layers/down": (n_layers, mlp, width),
      "final_norm": (width,),
  }
  block, head_dim = config.block, config.head_dim
  if block.biased_heads:
    kv_bias = (n_layers, config.kv_heads, head_dim)
    leaves |= {
        "layers/query_bias": (n_layers, config.heads, head_dim),
        "layers/key_bias": kv_bias,
        "layers/value_bias": kv_bias,
    }
  if block.normed_heads:
    names = ("layers/query_norm", "layers/key_norm")
    leaves |= dict.fromkeys(names, (n_layers, head_dim))
  if block.post_norms:
    names = ("layers/attention_post_norm", "layers/mlp_post_norm")
    leaves |= dict.fromkeys(names, (n_layers, width))
  if not config.tied_embeddings:
    leaves["head"] = (width, config.vocab_size)
  return leaves


def tensors(
    config: model_config.ModelConfig, names: Mapping[str, str]
) -> Iterator[Tensor]:
  """Lists the tensors of a file.

  Args:
    config: shape of the network.
    names: leaf → name in the file, with {layer} where layers are stacked.

  Yields:
    Tensors in the order of `shapes`, layer by layer.
  """
  for leaf in shapes(config):
    yield from tensors_of(config, names, leaf)


def tensors_of(
    config: model_config.ModelConfig, names: Mapping[str, str], leaf: str
) -> Iterator[Tensor]:
  """Lists the tensors of one leaf, layer by layer; see `tensors`."""
  shape = shapes(config)[leaf]
  if not leaf.startswith("layers/"):
    yield Tensor(names[leaf], leaf, None, shape)
    return
  for layer in range(config.layers):
    yield Tensor(names[leaf].format(layer=layer), leaf, layer, shape[1:])


def leaf_of(params: Mapping[str, Any], leaf: str) -> Any:
  """Returns what lies at a slash-separated path of a parameter tree."""
  node = params
  for part in leaf.split("/"):
    node = node[part]
  return node
