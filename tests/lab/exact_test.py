"""The exact policy gradient, against sums over the whole vocabulary."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import tiny_run

from jaxrl_llm.data import packing
from jaxrl_llm.lab import exact
from jaxrl_llm.models import sharding
from jaxrl_llm.training import scoring

STOPS = (3, 7)
V = tiny_run.VOCABULARY


def test_responses_are_all_that_can_be_drawn():
  """V 4, one stop, 3 tokens: 1 + 3·1 + 9·4 = 40."""
  found = [tuple(x) for x in exact.responses(4, (2,), 3)]
  assert len(found) == len(set(found)) == exact.count(4, 1, 3) == 40
  for tokens in found:
    assert 2 not in tokens[:-1]
    assert len(tokens) == 3 or tokens[-1] == 2
  assert exact.count(272, 1, 2) == 1 + 271 * 272


def reward(tokens):
  """Depends on both tokens; NaN, which counts as 0, for some."""
  if tokens[0] == 5:
    return np.nan
  return float(tokens[0] % 3 == 0) - 0.5 * float(tokens[-1] % 4 == 1)


def make(limit=10**6, asked=None):
  def grade(listed):
    if asked is not None:
      asked.append(len(listed))
    return [reward(tokens) for _, tokens in listed]

  return exact.Enumeration(
      policy=tiny_run.POLICY,
      stop_ids=STOPS,
      length=2,
      grade=grade,
      shape=scoring.Shape(4, 48),
      rows=sharding.rows(tiny_run.mesh()),
      limit=limit,
  )


def expected_reward(params, rollout):
  """Σ_y π(y) R(y) by two calls of the network per first token, no packing."""

  def logprobs(context):
    """log π(· | context) for every next token, [V]."""
    rows = [
        dataclasses.replace(
            rollout,
            prompt_tokens=np.int32(context),
            response_tokens=np.int32([token]),
            response_mask=np.ones(1, bool),
            behavior_logprobs=np.zeros(1, np.float32),
            log_kept_mass=np.zeros(1, np.float32),
            policy_versions=np.zeros(1, np.int32),
            topk_ids=np.zeros((1, 0), np.int32),
            topk_logprobs=np.zeros((1, 0), np.float32),
        )
        for token in range(V)
    ]
    batch = packing.assemble(rows, [[n] for n in range(V)], tokens_per_row=16)
    return tiny_run.POLICY.token_logprobs(
        params, batch.tokens, batch.segment_ids, batch.parent_ids,
        batch.positions, batch.temperatures,
    ).logprobs[:, len(context)]

  prompt = rollout.prompt_tokens.tolist()
  first = logprobs(prompt)
  total = 0.0
  for token in range(V):
    chance = jnp.exp(first[token])
    if token in STOPS:
      total += chance * np.nan_to_num(reward([token]))
      continue
    second = jnp.exp(logprobs([*prompt, token]))
    rewards = np.nan_to_num([reward([token, last]) for last in range(V)])
    total += chance * jnp.sum(second * rewards)
  return total


def test_reward_and_gradient_are_those_of_the_whole_sum():
  rollouts = tiny_run.make_rollouts(groups=2)
  prompts = [rollouts[0], rollouts[4]]
  params = tiny_run.params()
  wanted, slope = jax.value_and_grad(
      lambda p: sum(expected_reward(p, one) for one in prompts) / 2
  )(params)
  found, gradient = make()(params, rollouts)
  np.testing.assert_allclose(found, wanted, rtol=1e-5)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
      gradient, slope,
  )


def test_too_many_responses_are_not_listed_and_none_is_graded_twice():
  rollouts = tiny_run.make_rollouts(groups=2)
  size = exact.count(V, len(STOPS), 2)
  assert make(limit=2 * size - 1)(tiny_run.params(), rollouts) is None
  asked = []
  enumeration = make(2 * size, asked)
  for _ in range(2):
    assert enumeration(tiny_run.params(), rollouts) is not None
  assert asked == [size, size]
