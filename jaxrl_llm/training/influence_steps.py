"""The jitted functions behind influence scores, with shardings spelled out."""

from collections.abc import Callable
import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.curation import influence
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import step

Array = types.Array
PyTree = types.PyTree


@dataclasses.dataclass(frozen=True)
class Steps:
  """The compiled functions of one run.

  Attributes:
    scores: (params, direction, batch, sums) -> [B, T], what each token adds to
      its episode's score.
    start: params -> a validation gradient of nothing.
    add: (params, gradient, batch, per-token weights) -> gradient. Donates the
      gradient.
    point: (gradient, second moments or None) -> direction of norm 1.
  """

  scores: Callable
  start: Callable
  add: Callable
  point: Callable


def contributions(
    policy: policy_lib.Policy,
    spec: objective.Spec,
    params: PyTree,
    batch: types.Batch,
    statistics: PyTree | None,
    plain: bool = True,
) -> Array:
  """Returns [B, T], ℓ_t / n: over a response they add up to its loss.

  L_i is the token mean of the policy loss alone; rejected tokens add 0 and
  count.
  """
  terms = step.live_terms(policy, spec, params, batch, plain)
  losses, _ = objective.token_losses(spec, terms, statistics)
  where = masked.layout(terms.mask, terms.segment_ids, losses.dtype)
  return masked.fill(losses / jnp.maximum(where.lengths, 1.0), terms.mask)


def validation_loss(
    policy: policy_lib.Policy,
    params: PyTree,
    batch: types.Batch,
    weights: Array,
) -> Array:
  """Returns −Σ w_t log π(y_t) over a micro-batch."""
  scored = step.token_logprobs(policy, params, batch)
  mask = batch.terms.mask
  return -jnp.sum(scored.logprobs * masked.fill(weights, mask))


@functools.lru_cache(maxsize=8)
def build(
    policy: policy_lib.Policy,
    spec: objective.Spec,
    epsilon: float,
    mesh: jax.sharding.Mesh,
) -> Steps:
  """Makes the functions; the same arguments give the same ones.

  Args:
    policy: the network.
    spec: the objective behind the episodes' losses.
    epsilon: of the optimizer, for preconditioning.
    mesh: where parameters and the rows of micro-batches lie.
  """
  everywhere = sharding_lib.replicated(mesh)
  trained_at = sharding_lib.shardings(
      mesh,
      policy_lib.trained(policy.logical_axes),
      policy_lib.trained(policy.shapes),
  )

  def scores(params, direction, batch, sums):
    losses = lambda part: contributions(
        policy, spec, policy_lib.with_trained(params, part), batch, sums
    )
    return influence.scores(losses, policy_lib.trained(params), direction)

  def add(params, gradient, batch, weights):
    slope = jax.grad(
        lambda part: validation_loss(
            policy, policy_lib.with_trained(params, part), batch, weights
        )
    )
    return jax.tree.map(jnp.add, gradient, slope(policy_lib.trained(params)))

  def point(gradient, moments):
    if moments is not None:
      gradient = influence.precondition(gradient, moments, epsilon)
    return influence.unit(gradient)

  return Steps(
      scores=jax.jit(scores, out_shardings=everywhere),
      start=jax.jit(
          lambda params: jax.tree.map(
              jnp.zeros_like, policy_lib.trained(params)
          ),
          out_shardings=trained_at,
      ),
      add=jax.jit(add, donate_argnums=1, out_shardings=trained_at),
      point=jax.jit(point, out_shardings=trained_at),
  )
