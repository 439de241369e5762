"""FLOPs of the matrix products of a traced program.

Counted in the program as it was traced, before the compiler: what the backward
pass recomputes is there, the turns of scans are known, and sizes are those of
the whole mesh. Everything but matrix products is left out.
"""

from collections.abc import Iterator, Mapping
import math
from typing import Any

from jax.extend import core


def flops(jaxpr: Any, turns: int) -> float:
  """Adds up the products of a jaxpr, over all devices together.

  Args:
    jaxpr: of `jax.jit(…).trace(…).jaxpr`.
    turns: of loops that the program itself ends.
  """
  total = 0.0
  for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
    kind, params = equation.primitive.name, equation.params
    if kind == "dot_general":
      total += _product(equation)
      continue
    inner = [flops(part, turns) for part in _jaxprs(params)]
    if kind == "cond":
      total += max(inner)
    else:
      total += sum(inner) * _times(kind, params, turns)
  return total


def _times(kind: str, params: Mapping[str, Any], turns: int) -> int:
  """Returns how often what an equation holds runs, over all devices."""
  if kind == "scan":
    return params["length"]
  if kind == "while":
    return turns
  if kind == "pallas_call":  # A kernel's body is one step of its grid.
    return math.prod(params["grid_mapping"].grid)
  if kind == "shard_map":
    return math.prod(
        params["mesh"].shape[axis] for axis in params["newly_manual_axes"]
    )
  return 1


def _jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
  kinds = (core.ClosedJaxpr, core.Jaxpr)
  for value in params.values():
    for part in value if isinstance(value, (tuple, list)) else (value,):
      if isinstance(part, kinds):
        yield part


def _product(equation: Any) -> float:
  """2 × all combinations of the free, summed and shared axes."""
  left, right = (variable.aval.shape for variable in equation.invars)
  (_, summed), (_, shared) = equation.params["dimension_numbers"]
  both = math.prod(right[axis] for axis in (*summed, *shared))
  return 2.0 * math.prod(left) * math.prod(right) / both
