"""The forms that a policy's parameters come in, and what each stands for.

Masters are trained as they are. A frozen tree (see frozen.py) is not trained;
a compute copy is one. A tree with adapters (see lora.py) has either as its
base, and its adapters are trained.
"""

from typing import Any

import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import block
from jaxrl_llm.models import frozen
from jaxrl_llm.models import lora as lora_lib
from jaxrl_llm.models import weight_layout

Array = types.Array
PyTree = types.PyTree


def base_of(params: PyTree) -> PyTree:
  """Returns the weights beside adapters, or the tree itself."""
  return params.get(lora_lib.BASE, params)


def is_frozen(params: PyTree) -> bool:
  """Whether no gradient of the weights themselves is taken."""
  return lora_lib.has_adapters(params) or frozen.HEAD in params


def head(params: PyTree) -> Array:
  """Returns the head as [V, D]."""
  base = base_of(params)
  if frozen.HEAD in base:
    return base[frozen.HEAD]
  return base["head"].T if "head" in base else base["embedding"]


def compute_copy(params: PyTree, dtype: jnp.dtype) -> PyTree:
  """Returns what products in `dtype` read; see Policy.compute_copy."""
  if lora_lib.has_adapters(params):
    base = compute_copy(params[lora_lib.BASE], dtype)
    return params | {lora_lib.BASE: base}
  return params if frozen.HEAD in params else frozen.freeze(params, dtype)


def axes_like(
    params: PyTree, master_axes: PyTree, lora: lora_lib.Lora | None
) -> PyTree:
  """Returns logical axis names in the tree of `params`.

  Args:
    params: arrays or shapes, in any form.
    master_axes: of the masters.
    lora: of the adapters, if there are some.
  """
  if lora_lib.has_adapters(params):
    base = axes_like(params[lora_lib.BASE], master_axes, None)
    adapters = lora_lib.axes(lora, master_axes)
    return {lora_lib.ADAPTERS: adapters, lora_lib.BASE: base}
  if frozen.HEAD in params:
    return frozen.axes_like(params, master_axes)
  return master_axes


def merged(
    params: PyTree, lora: lora_lib.Lora | None, tied: bool
) -> PyTree:
  """Returns float32 masters that say what `params` say.

  Args:
    params: in any form.
    lora: of the adapters, if there are some.
    tied: the head is the transposed embedding.
  """
  base = base_of(params)
  if frozen.HEAD in base:
    base = frozen.thaw(base, tied)
  if not lora_lib.has_adapters(params):
    return base
  return base | {"layers": lora_lib.merged_layers(lora, params)}


def variables(params: PyTree, rounded: PyTree) -> dict[str, Any]:
  """Returns the collections that decoder.Decoder reads.

  Args:
    params: as the caller was given them.
    rounded: their compute copy.
  """
  base = base_of(rounded)
  vectors = weight_layout.VECTORS & base["layers"].keys()
  stack = {
      name: weight
      for name, weight in base["layers"].items()
      if name not in vectors
  }
  if not is_frozen(params):
    return {"params": params, block.ROUNDED: {"layers": stack}}
  weights = base | {"layers": {name: base["layers"][name] for name in vectors}}
  made = {"params": weights, block.FROZEN: {"layers": stack}}
  if lora_lib.has_adapters(params):
    made[block.ADAPTERS] = {"layers": params[lora_lib.ADAPTERS]}
  return made
