"""Low-rank adapters (LoRA, arXiv 2106.09685) beside frozen weights.

A tree with adapters is {"adapters": …, "base": …}. The base is masters or a
frozen tree (see frozen.py) and is never trained. Of a target such as "query",
the adapters hold "query_a" [L, *read, R] and "query_b" [L, R, *made], float32:
the layer multiplies by W + alpha / R · a · b.
"""

from collections.abc import Sequence
import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import frozen
from jaxrl_llm.models import weight_layout

Array = types.Array
PyTree = types.PyTree

ADAPTERS, BASE = "adapters", "base"
TARGETS = ("query", "key", "value", "output", "gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class Lora:
  """Which matrices have adapters, and of what size.

  Attributes:
    rank: R.
    alpha: what a · b is multiplied by, times R.
    targets: names of matrices, of TARGETS.
  """

  rank: int
  alpha: float
  targets: tuple[str, ...] = TARGETS

  def __post_init__(self):
    if self.rank < 1 or self.alpha <= 0:
      raise ValueError(
          "model.lora_rank, model.lora_alpha: expected more than 0, found "
          f"{self.rank} and {self.alpha}; correct the config."
      )
    unknown = [name for name in self.targets if name not in TARGETS]
    if unknown or not self.targets or len(set(self.targets)) < len(
        self.targets
    ):
      raise ValueError(
          f"model.lora_targets: expected some of {', '.join(TARGETS)}, each "
          f"once, found {', '.join(self.targets)!r}; correct the config."
      )

  @property
  def scale(self) -> float:
    """Factor of a · b."""
    return self.alpha / self.rank


def has_adapters(params: PyTree) -> bool:
  """Whether a tree has adapters."""
  return ADAPTERS in params


def base(params: PyTree) -> PyTree | None:
  """Returns the weights beside the adapters; None where there are none."""
  return params[BASE] if has_adapters(params) else None


def trained(params: PyTree) -> PyTree:
  """Returns the part of a tree that training moves."""
  return params[ADAPTERS] if has_adapters(params) else params


def with_trained(params: PyTree, moved: PyTree) -> PyTree:
  """Returns a tree whose trained part is `moved`."""
  return params | {ADAPTERS: moved} if has_adapters(params) else moved


def _split(shape: Sequence, target: str) -> tuple[tuple, tuple]:
  """Returns what a product reads and makes, of a shape without layers."""
  read = weight_layout.read_axes(target)
  return tuple(shape[:read]), tuple(shape[read:])


def init(
    lora: Lora, config: config_lib.ModelConfig, key: Array
) -> dict[str, Array]:
  """Draws adapters that change nothing yet: b = 0, a uniform in ±I^-½."""
  shapes, adapters = weight_layout.shapes(config), {}
  keys = jax.random.split(key, len(lora.targets))
  for target, key in zip(lora.targets, keys):
    layers, *shape = shapes[f"layers/{target}"]
    read, made = _split(shape, target)
    bound = math.prod(read) ** -0.5
    adapters[f"{target}_a"] = jax.random.uniform(
        key, (layers, *read, lora.rank), jnp.float32, -bound, bound
    )
    adapters[f"{target}_b"] = jnp.zeros((layers, lora.rank, *made))
  return adapters


def axes(lora: Lora, base_axes: PyTree) -> dict[str, tuple[str, ...]]:
  """Returns the logical axes of the adapters.

  Args:
    lora: their targets.
    base_axes: of the masters.
  """
  found = {}
  for target in lora.targets:
    layers, *names = base_axes["layers"][target]
    read, made = _split(names, target)
    found[f"{target}_a"] = (layers, *read, "rank")
    found[f"{target}_b"] = (layers, "rank", *made)
  return found


def change(lora: Lora, adapters: PyTree, target: str) -> Array:
  """Returns alpha / R · a · b, float32 [L, *read, *made]."""
  a, b = adapters[f"{target}_a"], adapters[f"{target}_b"]
  flat = jnp.einsum(
      "lir,lro->lio",
      jnp.reshape(a, (a.shape[0], -1, lora.rank)),
      jnp.reshape(b, (*b.shape[:2], -1)),
      precision=jax.lax.Precision.HIGHEST,
  )
  return jnp.reshape(lora.scale * flat, (*a.shape[:-1], *b.shape[2:]))


def merged_layers(lora: Lora, params: PyTree) -> PyTree:
  """Returns the base's "layers" with the adapters added, in float32."""
  layers = dict(params[BASE]["layers"])
  for target in lora.targets:
    weight = frozen.weight(layers[target], jnp.float32)
    layers[target] = weight + change(lora, params[ADAPTERS], target)
  return layers
