"""The exact policy gradient, where all responses can be listed.

The expected reward of a policy on a prompt is J = Σ_y π(y) R(y) over all
responses y up to a length: those that end with a stop token, and those of full
length. Its gradient needs no sample, no baseline and no ratio. Only responses
with a reward other than 0 take part.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import packing
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import scoring
from jaxrl_llm.training import step

# (a record of the prompt, a response's tokens) per response -> their rewards.
Grade = Callable[[Sequence[tuple[types.Rollout, np.ndarray]]], Sequence[float]]


def count(vocabulary: int, stops: int, length: int) -> int:
  """Number of responses of at most `length` tokens.

  Args:
    vocabulary: V, tokens that may be drawn.
    stops: of them, those that end a response.
    length: T, at which every response ends.
  """
  going_on = vocabulary - stops
  ended = sum(stops * going_on**t for t in range(length - 1))
  return ended + going_on ** (length - 1) * vocabulary


def responses(
    vocabulary: int, stop_ids: Sequence[int], length: int
) -> Iterator[np.ndarray]:
  """Lists all responses, int32 [R] each, the shorter ones first."""
  going_on = [n for n in range(vocabulary) if n not in set(stop_ids)]
  for size in range(1, length + 1):
    lasts = range(vocabulary) if size == length else sorted(set(stop_ids))
    for start in itertools.product(going_on, repeat=size - 1):
      for last in lasts:
        yield np.array([*start, last], np.int32)


@dataclasses.dataclass
class Enumeration:
  """All rewarded responses to the prompts seen so far, graded once.

  Attributes:
    policy: the network.
    stop_ids: tokens that end a response.
    length: most tokens of a response.
    grade: gives rewards; NaN (no verdict) counts as 0.
    shape: of the micro-batches.
    rows: where their rows lie.
    limit: most responses that are listed for one call.
  """

  policy: policy_lib.Policy
  stop_ids: Sequence[int]
  length: int
  grade: Grade
  shape: scoring.Shape
  rows: jax.sharding.Sharding
  limit: int
  _known: dict[int, list[types.Rollout]] = dataclasses.field(
      default_factory=dict
  )

  def affordable(self, prompts: int) -> bool:
    """Whether so many prompts have at most `limit` responses."""
    vocabulary = self.policy.config.vocab_size
    size = count(vocabulary, len(set(self.stop_ids)), self.length)
    return prompts * size <= self.limit

  def __call__(
      self, params: types.PyTree, rollouts: Sequence[types.Rollout]
  ) -> tuple[float, types.PyTree] | None:
    """Expected reward on the prompts of some records, and its gradient.

    Args:
      params: of the policy; the gradient is by what is trained of them.
      rollouts: their prompts count once each, with equal weight.

    Returns:
      (mean over the prompts of J, its gradient); None where there are too many
      responses to list.
    """
    prompts = {rollout.prompt_id: rollout for rollout in rollouts}
    if not self.affordable(len(prompts)):
      return None
    chosen = [
        one for template in prompts.values() for one in self._rewarded(template)
    ]
    trained = policy_lib.trained(params)
    total = jnp.zeros(()), jax.tree.map(jnp.zeros_like, trained)
    rows = packing.pack_rollouts(chosen, self.shape.tokens)
    for start in range(0, len(rows), self.shape.rows):
      batch = self._batch(chosen, rows[start : start + self.shape.rows])
      total = jax.tree.map(
          jnp.add, total, _value_and_grad(self.policy, params, batch)
      )
    value, grads = jax.tree.map(lambda leaf: leaf / len(prompts), total)
    return float(value), grads

  def _batch(
      self, rollouts: Sequence[types.Rollout], rows: Sequence[Sequence[int]]
  ) -> types.Batch:
    """Lays some rows out as a micro-batch with sequence ids of its own."""
    numbers = iter(range(len(rollouts)))
    batch = packing.assemble(
        [rollouts[member] for row in rows for member in row],
        [[next(numbers) for _ in row] for row in rows],
        tokens_per_row=self.shape.tokens,
        rows_per_microbatch=self.shape.rows,
    )
    return scoring.place(batch, self.rows)

  def _rewarded(self, template: types.Rollout) -> list[types.Rollout]:
    """Lists the responses to a prompt that have a reward."""
    if template.prompt_id not in self._known:
      vocabulary = self.policy.config.vocab_size
      listed = [
          (template, tokens)
          for tokens in responses(vocabulary, self.stop_ids, self.length)
      ]
      rewards = np.nan_to_num(np.asarray(self.grade(listed), np.float64))
      self._known[template.prompt_id] = [
          _record(template, tokens, float(reward))
          for (_, tokens), reward in zip(listed, rewards, strict=True)
          if reward
      ]
    return self._known[template.prompt_id]


def _record(
    template: types.Rollout, tokens: np.ndarray, reward: float
) -> types.Rollout:
  """A record of the prompt with another response."""
  size = tokens.size
  zeros = np.zeros(size, np.float32)
  return dataclasses.replace(
      template,
      response_tokens=tokens,
      response_mask=np.ones(size, bool),
      behavior_logprobs=zeros,
      log_kept_mass=zeros,
      policy_versions=np.zeros(size, np.int32),
      window_start=0,
      topk_ids=np.zeros((size, 0), np.int32),
      topk_logprobs=np.zeros((size, 0), np.float32),
      reward=reward,
  )


@functools.partial(jax.jit, static_argnums=0)
def _value_and_grad(policy, params, batch):
  """Σ π(y) R(y) over the responses of a batch, and its gradient."""
  terms = batch.terms
  ids = terms.sequence_ids.reshape(-1)

  def sums(values):
    values = jnp.where(terms.mask, values, 0.0).reshape(-1)
    return jax.ops.segment_sum(values, ids, num_segments=ids.size)

  # The reward stands at every token of a response.
  rewards = sums(terms.rewards) / jnp.maximum(sums(1.0), 1.0)

  def value(part):
    whole = policy_lib.with_trained(params, part)
    scored = step.token_logprobs(policy, whole, batch)
    return jnp.sum(jnp.exp(sums(scored.logprobs)) * rewards)

  return jax.value_and_grad(value)(policy_lib.trained(params))
