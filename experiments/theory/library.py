"""What the library's objectives make of a batch, for the checks to read."""

import dataclasses
import functools

import jax

from jaxrl_llm import types
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import tokens as tokens_lib


@functools.partial(jax.jit, static_argnums=0)
def gain_and_factors(
    spec: objective.Spec, batch: types.Terms, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """What the library maximises, and its factor of ∇log π at each token.

  Args:
    spec: the objective.
    batch: terms; controls replace numbers of the spec.
    weights: float [B, T] that stand in for the denominators.

  Returns:
    (Σ weights × gain, its derivative by each log-prob [B, T]).
  """

  def gain(logprobs):
    moved = dataclasses.replace(batch, logprobs=logprobs)
    return -objective.apply(spec, moved, {"policy": weights}).loss

  return jax.value_and_grad(gain)(batch.logprobs)


@functools.partial(jax.jit, static_argnums=0)
def verdict(
    spec: objective.Spec, batch: types.Terms
) -> tuple[jax.Array, surrogates.Region]:
  """(log-ratios of the ratio part, what the trust region decides), [B, T]."""
  spec = spec_lib.with_controls(spec, batch.controls)
  tokens = tokens_lib.view(spec, batch)
  log_ratios, _ = tokens_lib.ratio_logs(spec, tokens)
  return log_ratios, spec.trust_region(log_ratios, tokens, None)
