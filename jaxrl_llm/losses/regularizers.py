"""Terms added to the policy loss, each with its own denominator.

With d = log π − log ref (nats), on tokens drawn from π:

  name  value             gradient in the loss       in expectation
  k1    d                 d ∇log π (score function)  ∇ KL(π‖ref)
  k2    ½ d²              d ∇log π                   ∇ KL(π‖ref)
  k3    exp(−d) − 1 + d   (1 − ref/π) ∇log π         ∇ KL(ref‖π)

Differentiating k1 as it stands would give ∇log π, whose expectation is 0.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts

Array = jax.Array

_EXPONENT_CAP = 20.0


def k1(logprobs: Array, reference: Array) -> Array:
  """d, with the gradient d ∇log π."""
  gap = jax.lax.stop_gradient(logprobs - reference)
  return gap + gap * (logprobs - jax.lax.stop_gradient(logprobs))


def k2(logprobs: Array, reference: Array) -> Array:
  """½ d²."""
  return 0.5 * jnp.square(logprobs - reference)


def k3(logprobs: Array, reference: Array) -> Array:
  """exp(−d) − 1 + d; gradient 0 where |d| > 20."""
  gap = masked.clamp(logprobs - reference, -_EXPONENT_CAP, _EXPONENT_CAP)
  return jnp.exp(-gap) - 1.0 + gap


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


@dataclasses.dataclass(frozen=True)
class Regularizers(parts.Part):
  """KL to the reference policy, entropy bonus, NLL of what was rewarded."""

  kl_coefficient: float = parts.key(
      0.0, "weight of the KL to the reference in the loss", at_least=0.0
  )
  kl_estimator: str = parts.key(
      "k3", "per-token KL estimator in the loss: k1, k2 or k3",
      choices=tuple(ESTIMATORS),
  )
  entropy_coefficient: float = parts.key(
      0.0, "weight of the entropy bonus, subtracted from the loss", at_least=0.0
  )
  positive_coefficient: float = parts.key(
      0.0,
      "weight of the mean NLL over the tokens of responses with a reward above"
      " 0 (vapo)",
      at_least=0.0,
  )

  def idle_keys(self) -> frozenset[str]:
    return frozenset([] if self.kl_coefficient else ["kl_estimator"])

  def describe(self) -> str:
    lines = []
    if self.kl_coefficient:
      value = {
          "k1": "d, gradient d ∇log π",
          "k2": "½ d²",
          "k3": "exp(−d) − 1 + d",
      }[self.kl_estimator]
      lines.append(
          f"+ {self.kl_coefficient:g} × KL to the reference, "
          f"{self.kl_estimator}: {value}, d = log π − log reference"
      )
    if self.entropy_coefficient:
      lines.append(f"− {self.entropy_coefficient:g} × entropy of π in nats")
    if self.positive_coefficient:
      lines.append(
          f"+ {self.positive_coefficient:g} × mean of −log π over the tokens of"
          " responses with R > 0"
      )
    return "; ".join(lines) or "none"
