"""The exact policy gradient, against sums over the whole vocabulary."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.data import packing
from jaxrl_llm.lab import exact
from jaxrl_llm.models import lora as lora_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.training import scoring

STOPS = (3, 7)
V = tiny_run.VOCABULARY
ADAPTED = dataclasses.replace(
    tiny_run.POLICY, lora=lora_lib.Lora(2, 4.0), base_dtype="bfloat16"
)


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


def make(limit=10**6, asked=None, policy=tiny_run.POLICY):
  def grade(listed):
    if asked is not None:
      asked.append(len(listed))
    return [reward(tokens) for _, tokens in listed]

  return exact.Enumeration(
      policy=policy,
      stop_ids=STOPS,
      length=2,
      grade=grade,
      shape=scoring.Shape(4, 48),
      rows=sharding.rows(tiny_run.mesh()),
      limit=limit,
  )


def pairs_of(rollout):
  """A row for every pair of tokens after the prompt, nothing shared."""
  rows = [
      dataclasses.replace(
          rollout,
          response_tokens=np.int32(pair),
          response_mask=np.ones(2, bool),
          behavior_logprobs=np.zeros(2, np.float32),
          log_kept_mass=np.zeros(2, np.float32),
          policy_versions=np.zeros(2, np.int32),
          topk_ids=np.zeros((2, 0), np.int32),
          topk_logprobs=np.zeros((2, 0), np.float32),
      )
      for pair in itertools.product(range(V), repeat=2)
  ]
  return packing.assemble(
      rows, [[n] for n in range(len(rows))], tokens_per_row=8
  )


def expected_reward(policy, params, batch, size):
  """Σ_y π(y) R(y) from log-probs of every pair; a stop token stands alone."""
  logprobs = policy.token_logprobs(
      params, batch.tokens, batch.segment_ids, batch.parent_ids,
      batch.positions, batch.temperatures,
  ).logprobs
  both = jnp.exp(logprobs[:, size] + logprobs[:, size + 1]).reshape(V, V)
  first = jnp.exp(logprobs[::V, size])
  rewards = np.nan_to_num(
      [[reward([a, b]) for b in range(V)] for a in range(V)]
  )
  total = sum(first[stop] * reward([stop]) for stop in STOPS)
  going_on = np.setdiff1d(np.arange(V), STOPS)
  return total + jnp.sum(both[going_on] * rewards[going_on])


def adapted_params():
  """Adapters that change something: both factors are drawn."""
  start = ADAPTED.init(jax.random.key(0))
  moved = jax.tree.map(
      lambda x: 0.1 * jax.random.normal(jax.random.key(1), x.shape),
      policy_lib.trained(start),
  )
  return policy_lib.with_trained(start, moved)


@pytest.mark.parametrize("policy, make_params", [
    (tiny_run.POLICY, tiny_run.params), (ADAPTED, adapted_params),
], ids=["masters", "adapters"])
def test_reward_and_gradient_are_those_of_the_whole_sum(policy, make_params):
  rollouts = tiny_run.make_rollouts(groups=2)
  prompts = [rollouts[0], rollouts[4]]
  params = make_params()
  batches = [(pairs_of(one), one.prompt_tokens.size) for one in prompts]
  wanted, slope = jax.jit(
      jax.value_and_grad(
          lambda moved: sum(
              expected_reward(
                  policy, policy_lib.with_trained(params, moved), *given
              )
              for given in batches
          ) / 2
      )
  )(policy_lib.trained(params))
  found, gradient = make(policy=policy)(params, rollouts)
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
