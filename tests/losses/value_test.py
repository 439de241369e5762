"""GAE and its variants, and the losses of a critic."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import advantages
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import kernels
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import value

GOLDEN = json.loads(
    (pathlib.Path(__file__).parents[1] / "golden/data.json").read_text()
)["golden"]
TIGHT = dict(rtol=1e-9, atol=1e-12)


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def episodes(rewards, values, mask=None, **fields) -> advantages.Episodes:
  rewards, values = (np.atleast_2d(x).astype(float) for x in (rewards, values))
  mask = np.ones_like(values) if mask is None else np.atleast_2d(mask)
  mask = mask > 0
  count = len(values)
  given = dict(
      scores=jnp.zeros(count),
      groups=jnp.zeros(count, jnp.int32),
      lengths=jnp.asarray(mask.sum(axis=1), float),
      mask=jnp.asarray(mask),
      token_rewards=jnp.asarray(rewards),
      values=jnp.asarray(values),
  )
  return advantages.Episodes(**given | fields)


@pytest.fixture(params=["scan", "parallel"])
def form(request, monkeypatch):
  monkeypatch.setitem(kernels.FORMS, jax.default_backend(), request.param)


@pytest.mark.parametrize("case", range(len(GOLDEN["gae"]["cases"])))
def test_golden_gae(case, form):
  golden = GOLDEN["gae"]
  wanted = golden["cases"][case]
  given = episodes(golden["rewards"], golden["values"], golden["mask"])
  part = value.Gae(discount=wanted["gamma"], lambda_actor=wanted["lam"])
  raw = dataclasses.replace(part, whitened=False)
  np.testing.assert_allclose(raw(given), wanted["advantages"], **TIGHT)
  np.testing.assert_allclose(part.targets(given), wanted["returns"], **TIGHT)
  whitened = wanted["advantages_whitened"]
  np.testing.assert_allclose(part(given), whitened, **TIGHT)


def test_golden_masked_tokens_are_deleted():
  golden = GOLDEN["gae_carry_forward_mask"]
  given = episodes(golden["rewards"], golden["values"], golden["mask"])
  part = value.Gae(lambda_actor=golden["lam"], whitened=False)
  np.testing.assert_allclose(part(given)[0], golden["advantages"], **TIGHT)


@pytest.mark.parametrize("case", range(len(GOLDEN["egae"]["cases"])))
def test_golden_egae(case):
  golden = GOLDEN["egae"]
  wanted = golden["cases"][case]
  part = value.Gae(
      discount=wanted["gamma"], lambda_actor=wanted["lam"], whitened=False
  )
  # The score of a response that is not finished is no reward.
  given = episodes(
      golden["rewards"], golden["values"], scores=jnp.ones(1),
      unfinished=jnp.array([True]),
  )
  truncated = wanted["advantages_truncated"]
  np.testing.assert_allclose(part(given)[0], truncated, **TIGHT)
  ended = dataclasses.replace(given, unfinished=jnp.array([False]))
  finished = wanted["advantages_if_finished_reward1"]
  np.testing.assert_allclose(part(ended)[0], finished, **TIGHT)


def test_a_cut_at_tool_tokens_repeats_the_last_response_token():
  """ALGORITHMS 7a: EGAE with tool tokens at the cut."""
  golden = GOLDEN["egae"]
  padded = [*golden["values"], 99.0, 99.0]
  given = episodes(
      [*golden["rewards"], 5.0, 5.0], padded, [1, 1, 1, 1, 0, 0],
      unfinished=jnp.array([True]),
  )
  wanted = golden["cases"][0]
  part = value.Gae(lambda_actor=wanted["lam"], whitened=False)
  found = part(given)[0, :4]
  np.testing.assert_allclose(found, wanted["advantages_truncated"], **TIGHT)


def test_golden_decoupled_gae():
  golden = GOLDEN["decoupled_gae"]
  given = episodes(golden["rewards"], golden["values"])
  part = value.Gae(
      lambda_actor=golden["lam_actor"], lambda_critic=golden["lam_critic"],
      whitened=False,
  )
  found, targets = part(given)[0], part.targets(given)[0]
  np.testing.assert_allclose(found, golden["actor_advantages"], **TIGHT)
  np.testing.assert_allclose(targets, golden["critic_targets"], **TIGHT)
  spec = algorithms.build({"name": "vcppo"})
  assert spec.advantage.lambda_actor == golden["lam_actor"]
  assert spec.advantage.lambda_critic == golden["lam_critic"]


def test_golden_length_adaptive():
  golden = GOLDEN["decoupled_gae"]["length_adaptive"]
  lengths = jnp.asarray(golden["length"], float)
  found = value.adaptive_decay(lengths, golden["alpha"])
  np.testing.assert_allclose(found, golden["lam_clamped"], **TIGHT)
  example = GOLDEN["decoupled_gae"]["length_adaptive_example"]
  rewards = np.eye(40)[-1]
  given = episodes(rewards, np.linspace(0.2, 0.8, 40))
  spec = algorithms.build({"name": "vapo", "whitened": False})
  found = spec.advantage(given)[0]
  first, last = example["advantages_first3"], example["advantages_last3"]
  np.testing.assert_allclose(found[:3], first, **TIGHT)
  np.testing.assert_allclose(found[-3:], last, **TIGHT)
  np.testing.assert_allclose(found.sum(), example["advantages_sum"], **TIGHT)
  # Its critic learns from Monte-Carlo returns.
  np.testing.assert_allclose(spec.advantage.targets(given), 1.0, **TIGHT)


def test_lambda_of_the_critic_follows_the_actor_unless_said():
  given = episodes(np.eye(5)[-1], np.linspace(0.1, 0.5, 5))
  own = value.Gae(lambda_actor=0.5).targets(given)
  same = value.Gae(lambda_actor=0.9, lambda_critic=0.5).targets(given)
  np.testing.assert_array_equal(own, same)
  assert np.abs(own - value.Gae(lambda_actor=0.9).targets(given)).max() > 0.01


def loop_next(values, after, mask, starts):
  """V(s_{t+1}) as written, backwards."""
  result = np.zeros_like(values)
  later = None
  for t in reversed(range(len(values))):
    if t + 1 == len(values) or starts[t + 1]:
      later = None
    if mask[t]:
      result[t] = after[t] if later is None else later
      later = values[t]
  return result


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "kernel", [kernels.next_values, kernels.next_values_parallel]
)
def test_next_values_over_packed_sequences(kernel, seed):
  draw = np.random.default_rng(seed)
  values, after = draw.normal(size=(2, 40))
  mask, starts = draw.random((2, 40)) < 0.6
  starts[0] = True
  found = jax.jit(kernel)(
      *map(jnp.asarray, (values, after, mask, starts))
  )
  wanted = loop_next(values, after, mask, starts)
  np.testing.assert_array_equal(np.asarray(found)[mask], wanted[mask])


def packed_terms(seed=0) -> tuple[types.Terms, types.Terms]:
  """Three sequences in one row, and the same in rows of their own."""
  draw = np.random.default_rng(seed)
  lengths = (5, 3, 6)
  names = ("values", "returns", "proximal_values")
  row = {name: draw.normal(size=16) for name in names}
  mask = draw.random(16) < 0.8
  mask[[1, 6, 9]] = True
  mask[14:] = False
  segments = np.repeat([1, 2, 3, 0], (*lengths, 2))
  one = types.Terms(
      mask=mask[None], segment_ids=segments[None],
      **{name: array[None] for name, array in row.items()},
  )
  starts = np.cumsum((0, *lengths))

  def apart(array):
    rows = np.zeros((3, 8), array.dtype)
    for number, (start, stop) in enumerate(zip(starts, starts[1:])):
      rows[number, 1 : 1 + stop - start] = array[start:stop]
    return rows

  three = types.Terms(
      mask=apart(mask), segment_ids=apart(segments),
      **{name: apart(array) for name, array in row.items()},
  )
  return one, three


PARTS = {
    "gae": value.Gae(), "unclipped": value.Gae(value_clip=0.0),
    "static": value.StaticValue(discount=0.9),
}


def total(part, aggregation, terms):
  weights = value.weights(aggregation, terms)
  return value.apply(part, terms, weights)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("name", PARTS)
def test_value_loss_does_not_depend_on_the_layout(name, mode):
  part, aggregation = PARTS[name], masked.AGGREGATIONS[mode]()
  one, three = packed_terms()
  spoiled = dataclasses.replace(
      one,
      **{
          field: np.where(one.mask, getattr(one, field), np.nan)
          for field in ("values", "returns", "proximal_values")
      },
  )

  def gradient(terms):
    function = lambda values: total(
        part, aggregation, dataclasses.replace(terms, values=values)
    ).loss
    return jax.value_and_grad(function)(jnp.asarray(terms.values))

  loss, slopes = gradient(one)
  for other in (three, spoiled):
    again, found = gradient(other)
    np.testing.assert_allclose(again, loss, **TIGHT)
    np.testing.assert_allclose(
        np.asarray(found)[other.mask], np.asarray(slopes)[one.mask], **TIGHT
    )
    assert not np.asarray(found)[~other.mask].any()


def test_value_loss_is_the_formula():
  terms, _ = packed_terms()
  mask = terms.mask
  values, returns, old = (
      np.asarray(x)[mask]
      for x in (terms.values, terms.returns, terms.proximal_values)
  )
  near = np.clip(values, old - 0.5, old + 0.5)
  assert (near != values).any() and (near == values).any()
  wanted = 0.5 * np.maximum((values - returns) ** 2, (near - returns) ** 2)
  found = total(value.Gae(), masked.TokenMean(), terms).loss
  np.testing.assert_allclose(found, wanted.mean(), **TIGHT)


@pytest.mark.parametrize("name", PARTS)
def test_metrics_of_a_critic_are_detached(name):
  terms, _ = packed_terms()

  def said(values):
    filled = dataclasses.replace(terms, values=values)
    found = total(PARTS[name], masked.TokenMean(), filled)
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(found.metrics))

  assert not np.asarray(jax.grad(said)(jnp.asarray(terms.values))).any()


def test_static_value_learns_from_the_next_token():
  """½ (rew + γ Q' − Q)²; no gradient reaches Q'."""
  q = jnp.array([[0.3, -0.2, 0.5]])
  mask = np.ones((1, 3), bool)
  rewards = np.array([[0.0, 0.0, 1.0]])
  part = value.StaticValue(discount=0.9)

  def loss(values):
    terms = types.Terms(
        mask=mask, values=values, returns=rewards, proximal_values=rewards
    )
    return value.apply(part, terms, jnp.ones((1, 3))).loss

  errors = np.array([0.9 * -0.2 - 0.3, 0.9 * 0.5 + 0.2, 1.0 - 0.5])
  np.testing.assert_allclose(loss(q), 0.5 * (errors**2).sum(), **TIGHT)
  np.testing.assert_allclose(jax.grad(loss)(q)[0], -errors, **TIGHT)
  given = episodes(rewards * 0, q, scores=jnp.ones(1))
  np.testing.assert_array_equal(part.targets(given), rewards)
  raw = dataclasses.replace(part, whitened=False)
  np.testing.assert_array_equal(raw(given), q)


def test_failed_verifiers_have_no_advantage_and_no_target():
  given = episodes(
      np.zeros((2, 3)), np.ones((2, 3)), scores=jnp.array([jnp.nan, 1.0])
  )
  for part in PARTS.values():
    assert not np.asarray(part(given)[0]).any()
    assert not np.asarray(part.targets(given)[0]).any()
    assert np.isfinite(part(given)).all()


def test_positive_nll_is_the_mean_over_rewarded_tokens():
  """VAPO: −log π over the tokens of correct samples, × 0.1."""
  draw = np.random.default_rng(0)
  mask = draw.random((3, 6)) < 0.8
  logprobs = -draw.random((3, 6))
  rewards = np.repeat([[1.0], [0.0], [2.0]], 6, axis=1)
  spec = algorithms.build({"name": "vapo"})
  terms = types.Terms(
      mask=mask, rewards=rewards, advantages=np.zeros((3, 6)),
      proximal_logprobs=logprobs, behavior_logprobs=logprobs,
  )
  weights = objective.denominators(spec, terms)

  def loss(live):
    filled = dataclasses.replace(terms, logprobs=live)
    return objective.apply(spec, filled, weights).loss

  chosen = mask & (rewards > 0)
  live = jnp.asarray(logprobs)
  wanted = -0.1 * logprobs[chosen].mean()
  np.testing.assert_allclose(loss(live), wanted, **TIGHT)
  slopes = np.where(chosen, -0.1 / chosen.sum(), 0.0)
  np.testing.assert_allclose(jax.grad(loss)(live), slopes, **TIGHT)
  nothing = dataclasses.replace(terms, rewards=np.zeros((3, 6)))
  assert not np.asarray(objective.denominators(spec, nothing)["positive"]).any()


def test_windows_are_trained_on_by_objectives_with_a_value_of_the_state():
  needs = {
      name: objective.requirements(algorithm.spec)
      for name, algorithm in algorithms.REGISTRY.items()
  }
  assert {n for n, need in needs.items() if need.bootstraps} == {
      "tppo", "vapo", "vcppo"
  }
  assert {n for n, need in needs.items() if need.critic} == {
      "tppo", "vapo", "vcppo", "dvpo"
  }
