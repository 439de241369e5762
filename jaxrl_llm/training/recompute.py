"""Log-probs of records under weights at hand, beside what they hold."""

from collections.abc import Sequence
import functools

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import packing
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import scoring
from jaxrl_llm.training import step

# Mean distance in nats between two engines that run the same weights; further
# apart, the records are another policy's, or their log-probs are shifted.
TOLERANCE = 0.1


def logprobs(
    policy: policy_lib.Policy,
    params: types.PyTree,
    rollouts: Sequence[types.Rollout],
    shape: scoring.Shape,
    mesh: jax.sharding.Mesh,
) -> list[np.ndarray]:
  """Returns log π of each record's response, of the whole vocabulary.

  Args:
    policy: the network.
    params: its parameters.
    rollouts: N records; their temperatures apply.
    shape: of a micro-batch.
    mesh: where the rows of a micro-batch lie.

  Returns:
    For each record float32 [R], nats, 0 outside the trained tokens.

  Raises:
    ValueError: a record is longer than a row, or than the model's context.
  """
  longest = max(
      rollout.prompt_tokens.size + rollout.response_tokens.size
      for rollout in rollouts
  )
  if longest > policy.config.context_length:
    raise ValueError(
        f"model.path: a record has {longest} tokens, the context of the model"
        f" is {policy.config.context_length}; delete its row, or choose the"
        " model that drew it."
    )

  index = indices.Index.of(rollouts)

  @functools.partial(jax.jit, out_shardings=sharding_lib.replicated(mesh))
  def score(params, batch):
    scored = step.token_logprobs(policy, params, batch)
    return {"logprobs": scored.logprobs}

  with jax.set_mesh(mesh):
    found = scoring.over_rows(
        functools.partial(score, params),
        rollouts.__getitem__,
        index,
        packing.pack_indexed(index, shape.tokens),
        shape,
        sharding_lib.rows(mesh),
    )
  return [np.minimum(values, 0.0) for values in found["logprobs"]]


def compare(
    rollouts: Sequence[types.Rollout], own: Sequence[np.ndarray]
) -> float:
  """Returns the mean distance of recorded log-probs from the model's, in nats.

  Args:
    rollouts: N records.
    own: of `logprobs`, one [R] a record.

  Raises:
    ValueError: it is beyond TOLERANCE; says whether a shift by one fits.
  """
  distances = {shift: [] for shift in (0, 1, -1)}
  for rollout, values in zip(rollouts, own):
    recorded = rollout.behavior_logprobs + rollout.log_kept_mass
    mask = indices.trained_mask(rollout)
    for shift, into in distances.items():
      # Recorded at t, the model's at t + shift.
      here = slice(max(-shift, 0), len(values) - max(shift, 0))
      there = slice(max(shift, 0), len(values) - max(-shift, 0))
      both = mask[here] & mask[there]
      into.append(np.abs(recorded[here] - values[there])[both])
  means = {
      shift: float(np.concatenate(found).mean())
      for shift, found in distances.items()
      if sum(map(len, found))
  }
  distance = means.get(0, 0.0)
  if distance <= TOLERANCE:
    return distance
  best = min(means, key=means.get)
  hint = "the weights, the temperature or the kind of log-prob is another"
  if means[best] < distance / 2:
    side = "next" if best > 0 else "last"
    hint = (
        f"those of the {side} token fit better ({means[best]:.3f}): they are"
        " shifted by one"
    )
  raise ValueError(
      "import_rollouts.drawn_by_model: recorded log-probs are"
      f" {distance:.3f} nats from the model's on average, expected at most"
      f" {TOLERANCE}; {hint}. Correct the dump or the configuration, or leave"
      " drawn_by_model unset."
  )
