"""How products of queries and keys become attention scores."""

import dataclasses

import jax.numpy as jnp

from jaxrl_llm import types

Array = types.Array

# Of a key that is not read. Finite, so that a row without any key gives a mean
# and not a NaN.
MASKED = -1e30


@dataclasses.dataclass(frozen=True)
class Rule:
  """Scale and softcap; hashable, so static under jit.

  Attributes:
    scale: factor of the products; None: H^-½.
    softcap: c of c · tanh(score / c); 0: none.
  """

  scale: float | None = None
  softcap: float = 0.0

  def factor(self, head_dim: int) -> float:
    """Returns what products are multiplied by."""
    return head_dim**-0.5 if self.scale is None else self.scale

  def scores(self, products: Array, head_dim: int) -> Array:
    """Scales and caps products of heads of width `head_dim`."""
    scores = products * self.factor(head_dim)
    if not self.softcap:
      return scores
    return self.softcap * jnp.tanh(scores / self.softcap)

  def slopes(self, scores: Array, head_dim: int) -> Array | float:
    """Returns ∂ score / ∂ product; 0 where a softcap's score is masked."""
    if not self.softcap:
      return self.factor(head_dim)
    share = jnp.maximum(scores, -self.softcap) / self.softcap
    return (1 - jnp.square(share)) * self.factor(head_dim)
