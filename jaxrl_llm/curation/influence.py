"""Influence of episodes on a validation loss, from one forward-mode pass.

The score of episode i is ⟨∇L_i, v⟩, v the gradient of a validation loss: a
step down ∇L_i lowers that loss by the step size times the score. With
f = (L_1, …, L_N), one Jacobian-vector product f'(θ) v gives all scores at the
cost of a forward pass and its tangent; no gradient of an episode is made. The
technique is that of PDS (arXiv 2410.07064) for pre-training data, the filter
that of I-PPO (arXiv 2604.01597).
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.curation import episodes as episodes_lib
from jaxrl_llm.losses import parts

PyTree = Any

VALIDATIONS = ("sft", "policy_gradient", "batch")


def scores(
    episode_losses: Callable[[PyTree], PyTree],
    params: PyTree,
    direction: PyTree,
) -> PyTree:
  """Returns ⟨∇L, v⟩ for every entry L of what `episode_losses` returns.

  Args:
    episode_losses: params -> losses, in any arrays: one per episode, or per
      token with an episode's loss as their sum. It must be differentiable
      forward (no custom_vjp) and treat all but `params` as constants.
    params: where the gradients are taken.
    direction: v, a tree like `params`.

  Returns:
    The inner products, in arrays like the losses.
  """
  return jax.jvp(episode_losses, (params,), (direction,))[1]


def unit(direction: PyTree) -> PyTree:
  """Scales a tree to norm 1 (a tree of zeros stays).

  Scores are linear in v and the weights do not change with its length; at
  length 1 small differences survive in short formats.
  """
  square = sum(
      jnp.sum(jnp.square(leaf.astype(jnp.float32)))
      for leaf in jax.tree.leaves(direction)
  )
  norm = jnp.sqrt(square)
  safe = jnp.where(norm > 0, norm, 1.0)
  return jax.tree.map(lambda leaf: leaf / safe.astype(leaf.dtype), direction)


def precondition(
    gradient: PyTree, second_moments: PyTree, epsilon: float
) -> PyTree:
  """Divides by the root of Adam's second moments: v = ḡ / (√ν̂ + ε).

  The scores are then inner products in the metric that Adam steps in.

  Args:
    gradient: of the validation loss.
    second_moments: ν̂, bias-corrected, a tree like `gradient`.
    epsilon: of the optimizer.
  """
  return jax.tree.map(
      lambda g, nu: g / (jnp.sqrt(nu) + epsilon), gradient, second_moments
  )


def survivor_weights(values: np.ndarray, reweight: bool = True) -> np.ndarray:
  """Weights of episodes by their scores.

  u_i = s_i / mean of the survivors' scores where s_i > 0, else 0. A score
  that is not finite is dropped; without a survivor all weights are 0.

  Args:
    values: float [N], scores.
    reweight: give survivors u_i; otherwise 1.

  Returns:
    float64 [N], mean 1 over the survivors.
  """
  values = np.asarray(values, np.float64)
  kept = np.isfinite(values) & (values > 0)
  if not kept.any():
    return np.zeros(values.shape)
  weights = values / values[kept].mean() if reweight else np.ones(values.shape)
  return np.where(kept, weights, 0.0)


@dataclasses.dataclass(frozen=True)
class Influence(episodes_lib.Step):
  """Keeps episodes with a positive score, weighted by it."""

  validation: str = parts.key(
      "sft",
      "loss behind v: sft (NLL of validation records with a positive reward),"
      " policy_gradient (their advantages), or batch (the rollout batch's own)",
      choices=VALIDATIONS,
  )
  validation_rollouts: str | None = parts.key(
      None,
      "shard folders of the validation records, comma-separated; for sft and"
      " policy_gradient",
  )
  reweight: bool = parts.key(
      True, "weigh survivors by score over their mean score, else by 1"
  )
  precondition: bool = parts.key(
      False,
      "divide v by the root of Adam's second moments; before the first update"
      " there are none and v stays",
  )
  refresh_batches: int = parts.key(
      1,
      "rollout batches from one validation gradient to the next; 1: each has"
      " its own, by the weights that it begins with",
      at_least=1,
  )
  stop_share: float | None = parts.key(
      None,
      "a rollout batch with a smaller share of survivors gets no update;"
      " unset: never",
      above=0.0,
      at_most=1.0,
  )

  words = "drops episodes with score ≤ 0, weighs the others by their score"
  reads_scores = True

  def idle_keys(self) -> frozenset[str]:
    own = ["validation_rollouts", "refresh_batches"]
    return frozenset(own if self.validation == "batch" else [])

  def stops(self, values: np.ndarray) -> bool:
    """Whether the share of survivors is below `stop_share`."""
    survivors = survivor_weights(values) > 0
    limit = self.stop_share
    return limit is not None and bool(survivors.mean() < limit)

  def __call__(self, episodes: episodes_lib.Episodes) -> list[np.ndarray]:
    values = survivor_weights(episodes.scores, self.reweight)
    if self.stops(episodes.scores):
      values = np.zeros_like(values)
    return episodes.spread(values)
