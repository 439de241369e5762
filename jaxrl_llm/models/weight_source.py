"""Weights in files, read part by part into the arrays of the parameter tree."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools

import numpy as np

from jaxrl_llm.models import config as model_config
from jaxrl_llm.models import weight_layout

Index = weight_layout.Index


@dataclasses.dataclass(frozen=True)
class Source:
  """A model in files that are open; nothing is read before it is asked for.

  Attributes:
    config: of the network, with the dtypes of the files.
    names: leaf → name in the files, with {layer} where layers are stacked.
    read: returns the part of a tensor that an index of its file_shape takes,
      in any dtype that float32 holds.
  """

  config: model_config.ModelConfig
  names: Mapping[str, str]
  read: Callable[[weight_layout.Tensor, Index], np.ndarray]

  @functools.cached_property
  def shapes(self) -> dict[str, tuple[int, ...]]:
    """The shape of every leaf, layers stacked on axis 0."""
    return weight_layout.shapes(self.config)

  def parts(self, leaf: str, indices: Sequence[Index]) -> list[np.ndarray]:
    """Reads parts of a leaf, one tensor after the other.

    Args:
      leaf: slash-separated path in the parameter tree.
      indices: slices of the leaf, in steps of 1.

    Returns:
      The parts, float32.
    """
    shape = self.shapes[leaf]
    taken = [
        [range(size)[part] for size, part in zip(shape, index)]
        for index in indices
    ]
    made = [np.empty([len(r) for r in ranges], np.float32) for ranges in taken]
    tensors = weight_layout.tensors_of(self.config, self.names, leaf)
    for tensor in tensors:
      for index, ranges, part in zip(indices, taken, made):
        if tensor.layer is None:
          part[...] = self._part(tensor, index)
        elif tensor.layer in ranges[0]:
          place = ranges[0].index(tensor.layer)
          part[place] = self._part(tensor, index[1:])
    return made

  def _part(self, tensor, index):
    array = self.read(tensor, tensor.file_index(index))
    return tensor.to_parameter(array, index)

  def tree(self) -> dict[str, object]:
    """Reads everything: the parameter tree, float32 numpy arrays."""
    return tree_of({
        leaf: self.parts(leaf, [(slice(None),) * len(shape)])[0]
        for leaf, shape in self.shapes.items()
    })


def tree_of(leaves: Mapping[str, object]) -> dict[str, object]:
  """Makes the parameter tree of its leaves by slash-separated path."""
  tree = {"layers": {}}
  for leaf, value in leaves.items():
    group = tree["layers"] if leaf.startswith("layers/") else tree
    group[leaf.rpartition("/")[2]] = value
  return tree


def open_files(
    config: model_config.ModelConfig,
    names: Mapping[str, str],
    found: Mapping[str, tuple[int, ...]],
    read: Callable[[weight_layout.Tensor, Index], np.ndarray],
    path: str,
) -> Source:
  """Checks that files hold the tensors of a network.

  Args:
    config: shape of the network.
    names: leaf → name in the files.
    found: name → shape of every tensor that the files hold.
    read: see Source.
    path: for error messages.

  Raises:
    ValueError: when tensors are missing, unknown or of another shape.
  """
  wanted = {
      tensor.name: tensor for tensor in weight_layout.tensors(config, names)
  }
  _check_names(wanted, found, path, config.family)
  for tensor in wanted.values():
    if tuple(found[tensor.name]) != tensor.file_shape:
      raise ValueError(
          f"{path}: tensor {tensor.name}: expected shape "
          f"{list(tensor.file_shape)}, found {list(found[tensor.name])}; the "
          "weights and the hyperparameters are of different models."
      )
  return Source(config, names, read)


def _check_names(
    wanted: Mapping[str, weight_layout.Tensor],
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
