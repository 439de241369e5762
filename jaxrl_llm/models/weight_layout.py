"""Which tensor of a weight file is which array of the parameter tree.

A file holds one tensor per layer, stored [out, in] by PyTorch's convention; the
tree stacks layers on axis 0, stores [in, out] and splits attention heads into
an axis of their own. Rotary embedding pairs feature i with i + H/2 in both.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from jaxrl_llm.models import config as model_config

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
  def file_shape(self) -> tuple[int, ...]:
    """Shape in the file: [out, in] for matrices of products, else flat."""
    if self.leaf.rpartition("/")[2] in VECTORS:
      return (math.prod(self.shape),)
    inputs = _INPUT_AXES.get(self.leaf, 0)
    if not inputs:
      return self.shape
    return math.prod(self.shape[inputs:]), math.prod(self.shape[:inputs])

  def to_parameter(self, array: np.ndarray) -> np.ndarray:
    """Turns the file's array into the parameter of this layer."""
    if self.leaf not in _INPUT_AXES:
      return array.reshape(self.shape)
    return array.T.reshape(self.shape)

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
  for leaf, shape in shapes(config).items():
    if leaf.startswith("layers/"):
      for layer in range(config.layers):
        name = names[leaf].format(layer=layer)
        yield Tensor(name, leaf, layer, shape[1:])
    else:
      yield Tensor(names[leaf], leaf, None, shape)


def leaf_of(params: Mapping[str, object], leaf: str) -> np.ndarray:
  """Returns the array at a slash-separated path as numpy."""
  node = params
  for part in leaf.split("/"):
    node = node[part]
  return np.asarray(node)


def assemble(
    config: model_config.ModelConfig,
    names: Mapping[str, str],
    found: Mapping[str, tuple[int, ...]],
    read: Callable[[Tensor], np.ndarray],
    source: str,
) -> dict[str, object]:
  """Reads every tensor into a float32 parameter tree.

  Args:
    config: shape of the network.
    names: leaf → name in the file.
    found: name → shape of every tensor that the file holds.
    read: returns the tensor in the file's shape.
    source: path for error messages.

  Returns:
    The parameter tree, float32 numpy arrays.

  Raises:
    ValueError: when tensors are missing, unknown or of another shape.
  """
  wanted = {tensor.name: tensor for tensor in tensors(config, names)}
  _check_names(wanted, found, source, config.family)
  for tensor in wanted.values():
    if tuple(found[tensor.name]) != tensor.file_shape:
      raise ValueError(
          f"{source}: tensor {tensor.name}: expected shape "
          f"{list(tensor.file_shape)}, found {list(found[tensor.name])}; the "
          "weights and the hyperparameters are of different models."
      )
  leaves = {
      leaf: np.empty(shape, np.float32)
      for leaf, shape in shapes(config).items()
  }
  for tensor in wanted.values():
    place = () if tensor.layer is None else tensor.layer
    leaves[tensor.leaf][place] = tensor.to_parameter(read(tensor))
  params = {"layers": {}}
  for leaf, array in leaves.items():
    group = params["layers"] if leaf.startswith("layers/") else params
    group[leaf.rpartition("/")[2]] = array
  return params


def _check_names(
    wanted: Mapping[str, Tensor],
    found: Mapping[str, object],
    source: str,
    family: str,
) -> None:
  missing = [name for name in wanted if name not in found]
  if missing:
    raise ValueError(
        f"{source}: expected {len(wanted)} tensors, {len(missing)} missing "
        f"(first: {missing[0]}); copy the model again or check its layer "
        "count and tied embeddings."
    )
  extra = [name for name in found if name not in wanted]
  if extra:
    raise ValueError(
        f"{source}: expected the {len(wanted)} tensors of a {family}, "
        f"found {len(extra)} more (first: {extra[0]}); remove them or choose "
        "a model of a supported family."
    )
