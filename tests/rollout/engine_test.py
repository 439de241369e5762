"""Tests of jaxrl_llm/rollout/engine.py on a tiny random model in float32."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.rollout import engine
from jaxrl_llm.rollout import sampler

POLICY = policy_lib.Policy(policy_lib.preset("tiny"), "float32")
SHAPES = engine.Shapes(
    slots=8, prefill_rows=2, prompt_buckets=(8, 16), steps_per_call=3
)
PLAIN = sampler.SamplingSettings(max_new_tokens=10)
TRUNCATED = sampler.SamplingSettings(
    max_new_tokens=10, top_k=60, top_p=0.8, min_p=0.01, record_topk=3
)
# More ids than the tokenizer's EOS (257) end a response.
STOP_IDS = (257, *range(30, 60))
LENGTHS = (1, 16, 8, 3, 9, 12, 2)


@pytest.fixture(scope="module")
def params():
  # Ten times wider logits than at random, so that tokens differ in odds.
  params = POLICY.init(jax.random.key(1))
  return params | {"embedding": params["embedding"] * 10}


def requests(samples=5, temperature=1.0, lengths=LENGTHS):
  generator = np.random.default_rng(0)
  return [
      engine.Request(
          generator.integers(60, 250, length).astype(np.int32),
          sampler.request_words("rollout", 0, 0, [i] * samples, range(samples)),
          np.full(samples, temperature, np.float32),
      )
      for i, length in enumerate(lengths)
  ]


def answer(params, wanted, sampling=PLAIN, shapes=SHAPES):
  made = engine.Engine(POLICY, params, STOP_IDS, sampling, shapes)
  return {(i, j): response for i, j, response in made.run(wanted)}


def contents(response):
  return [
      x if isinstance(x, str) else (x.dtype, x.tobytes())
      for x in dataclasses.astuple(response)
  ]


def trainer_scores(params, wanted, responses, temperature, **asked):
  """Scores responses as the trainer does; {key: TokenLogprobs of it}."""
  width = max(LENGTHS) + PLAIN.max_new_tokens
  rows = [
      np.concatenate([wanted[i].tokens, response.tokens])
      for (i, _), response in responses.items()
  ]
  tokens = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
  filled = np.arange(width) < np.array([len(row) for row in rows])[:, None]
  segments = filled.astype(np.int32)
  temperatures = np.full(tokens.shape, temperature, np.float32)
  scored = jax.jit(POLICY.token_logprobs, static_argnames=tuple(asked))(
      params, tokens, segments, segments,
      np.broadcast_to(np.arange(width, dtype=np.int32), tokens.shape),
      temperatures, **asked,
  )
  parts = {}
  for row, ((i, j), response) in enumerate(responses.items()):
    start = len(wanted[i].tokens)
    end = start + len(response.tokens)
    parts[i, j] = jax.tree.map(
        lambda x, row=row, start=start, end=end: np.asarray(x)[row, start:end],
        scored,
    )
  return parts


@pytest.mark.parametrize(
    "sampling, temperature",
    ((PLAIN, 1.0), (PLAIN, 0.6), (TRUNCATED, 0.6)),
)
def test_trainer_and_sampler_agree(params, sampling, temperature):
  # Temperature and truncation are part of the recorded distribution.
  wanted = requests(temperature=temperature)
  responses = answer(params, wanted, sampling)
  scores = trainer_scores(params, wanted, responses, temperature, topk=3)
  assert len(responses) == 35
  for key, response in responses.items():
    full = response.logprobs + response.log_kept_mass
    np.testing.assert_allclose(full, scores[key].logprobs, atol=1e-4)
    if sampling.record_topk:
      full = response.topk_logprobs + response.log_kept_mass[:, None]
      np.testing.assert_array_equal(response.topk_ids, scores[key].topk_ids)
      np.testing.assert_allclose(full, scores[key].topk_logprobs, atol=1e-4)
  masses = np.concatenate([x.log_kept_mass for x in responses.values()])
  assert (masses.mean() < -0.05) == sampling.truncation.active


def test_greedy_is_the_trainers_argmax_in_a_batch_and_alone(params):
  # Generation from a batch equals generation alone.
  wanted = requests(samples=1, temperature=0.0)
  responses = answer(params, wanted)
  scores = trainer_scores(params, wanted, responses, 1.0, topk=1)
  for key, response in responses.items():
    np.testing.assert_array_equal(response.tokens, scores[key].topk_ids[:, 0])
    np.testing.assert_allclose(
        response.logprobs, scores[key].logprobs, atol=1e-4
    )
  shapes = dataclasses.replace(SHAPES, slots=1, prefill_rows=1)
  for i in (2, 3):
    alone = answer(params, [wanted[i]], shapes=shapes)[0, 0]
    np.testing.assert_array_equal(alone.tokens, responses[i, 0].tokens)


def test_a_response_depends_on_itself_alone(params):
  # Neighbours, slot, order, prefill row and what ran before do not matter.
  wanted = requests()
  together = answer(params, wanted)
  reverse = answer(params, wanted[::-1])
  for (i, j), response in together.items():
    other = reverse[len(wanted) - 1 - i, j]
    assert contents(response) == contents(other)
  last = dataclasses.replace(
      wanted[4],
      words=wanted[4].words[-1:],
      temperatures=wanted[4].temperatures[-1:],
  )
  alone = answer(params, [last])
  assert contents(alone[0, 0]) == contents(together[4, 4])


def test_responses_end_where_they_should(params):
  # A stop id ends a response and is its last token; at the limit nothing is
  # appended, and a stop id drawn there is a stop.
  responses = answer(params, requests(samples=40)).values()
  reasons = [response.finish_reason for response in responses]
  assert {"stop", "length"} == set(reasons)
  at_limit = 0
  for response in responses:
    stops = np.isin(response.tokens, STOP_IDS)
    assert not stops[:-1].any()
    assert stops[-1] == (response.finish_reason == "stop")
    if response.finish_reason == "length":
      assert len(response.tokens) == PLAIN.max_new_tokens
    else:
      at_limit += len(response.tokens) == PLAIN.max_new_tokens
  assert at_limit
  assert min(len(response.tokens) for response in responses) == 1


def test_first_tokens_follow_the_softmax(params):
  wanted = requests(samples=1024, lengths=(9,))
  responses = answer(params, wanted)
  tokens = wanted[0].tokens
  ids = jnp.arange(272)
  row = np.append(tokens, 0)[None].astype(np.int32)
  scored = jax.jit(POLICY.token_logprobs)(
      params, row, np.ones_like(row), np.ones_like(row),
      np.arange(10, dtype=np.int32)[None], np.ones(row.shape, np.float32),
      gather_ids=jnp.broadcast_to(ids, (1, 10, 272)),
  )
  expected = 1024 * np.exp(np.asarray(scored.gathered[0, -1], np.float64))
  drawn = [response.tokens[0] for response in responses.values()]
  observed = np.bincount(drawn, minlength=272)
  often = expected >= 5
  assert 5 < often.sum() < 200
  observed = np.append(observed[often], observed[~often].sum())
  expected = np.append(expected[often], expected[~often].sum())
  expected *= observed.sum() / expected.sum()
  assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_nothing_compiles_after_warm_up(params):
  answer(params, requests())
  before = engine.compilations()
  answer(params, requests(samples=9, temperature=0.3))
  answer(params, requests(samples=1, lengths=(5,)))
  answer(jax.tree.map(lambda x: 2 * x, params), requests(lengths=(13, 2)))
  assert engine.compilations() == before


def test_no_request_gives_no_response(params):
  assert not answer(params, [])
  assert not answer(params, requests(samples=0))


def on_from(wanted, responses, count):
  """Requests the rest of every response that is longer than `count` tokens."""
  longer = {k: x for k, x in responses.items() if len(x.tokens) > count}
  return list(longer.values()), [
      engine.Request(
          np.concatenate([wanted[i].tokens, response.tokens[:count]]),
          wanted[i].words[j : j + 1],
          wanted[i].temperatures[j : j + 1],
          drawn=count,
      )
      for (i, j), response in longer.items()
  ]


@pytest.mark.parametrize("count", (1, 4, 9))
def test_a_response_goes_on_as_if_it_had_not_been_cut(params, count):
  # Prefixes are longer than the longest prompt, and each has its own length.
  wanted = requests()
  whole, rest = on_from(wanted, answer(params, wanted, TRUNCATED), count)
  found = answer(params, rest, TRUNCATED)
  assert len(found) == len(whole) > 9
  for number, expected in enumerate(whole):
    response = found[number, 0]
    np.testing.assert_array_equal(response.tokens, expected.tokens[count:])
    np.testing.assert_array_equal(response.topk_ids, expected.topk_ids[count:])
    for name in ("logprobs", "log_kept_mass", "topk_logprobs"):
      np.testing.assert_allclose(
          getattr(response, name), getattr(expected, name)[count:], atol=1e-4
      )
    assert response.finish_reason == expected.finish_reason


def windowed(params, wanted, window):
  made = engine.Engine(POLICY, params, STOP_IDS, PLAIN, SHAPES, window)
  return {(i, j): response for i, j, response in made.run(wanted)}


def test_a_window_cuts_and_changes_nothing_before(params):
  wanted = requests()
  whole, cut = answer(params, wanted), windowed(params, wanted, 4)
  reasons = set()
  for key, response in cut.items():
    expected = whole[key]
    for name in ("tokens", "logprobs", "log_kept_mass"):
      np.testing.assert_array_equal(
          getattr(response, name), getattr(expected, name)[:4]
      )
    ended = len(expected.tokens) <= 4
    reason = expected.finish_reason if ended else "window"
    assert response.finish_reason == reason
    reasons.add(reason)
  assert reasons == {"stop", "window"}


def test_a_window_ends_with_the_response(params):
  # 4 tokens of 10 before, then a window of 6 and one of 5.
  wanted = requests()
  whole, rest = on_from(wanted, answer(params, wanted), 4)
  for window, cut in ((6, "length"), (5, "window")):
    found = windowed(params, rest, window)
    for number, expected in enumerate(whole):
      tokens = expected.tokens[4 : 4 + window]
      np.testing.assert_array_equal(found[number, 0].tokens, tokens)
      stopped = tokens[-1] in STOP_IDS
      assert found[number, 0].finish_reason == ("stop" if stopped else cut)


@pytest.fixture
def steps(monkeypatch):
  """Decoding steps of each call from now on."""
  real, counted = engine.slots_lib.decode, []

  def decode(*arguments):
    state, taken, draws = real(*arguments)
    counted.append(int(taken))
    return state, taken, draws

  monkeypatch.setattr(engine.slots_lib, "decode", decode)
  return counted


def test_slots_are_refilled_while_others_decode(params, steps):
  limits = np.random.default_rng(0).permutation(np.linspace(4, 40, 96))
  wanted = [
      dataclasses.replace(request, limit=int(limit))
      for request, limit in zip(requests(1, lengths=(8,) * 96), limits)
  ]
  sampling = dataclasses.replace(PLAIN, max_new_tokens=40)
  made = engine.Engine(POLICY, params, (), sampling, SHAPES)
  drawn = sum(len(response.tokens) for *_, response in made.run(wanted))
  assert drawn == sum(map(int, limits))
  # Waves of 8 responses, each as long as its longest, would take 431.
  assert drawn / SHAPES.slots == 258.125
  assert sum(steps) < 1.15 * drawn / SHAPES.slots


def test_nothing_is_decoded_beyond_a_window(params, steps):
  shapes = dataclasses.replace(SHAPES, steps_per_call=8)
  made = engine.Engine(POLICY, params, STOP_IDS, PLAIN, shapes, window=3)
  assert len(list(made.run(requests(samples=1)))) == len(LENGTHS)
  # The first token is drawn where a slot is filled.
  assert steps == [2]


@pytest.mark.parametrize("window", (10, 11))
def test_a_window_as_long_as_a_response_is_none(params, window):
  wanted = requests()
  whole, cut = answer(params, wanted), windowed(params, wanted, window)
  assert {k: contents(x) for k, x in cut.items()} == {
      k: contents(x) for k, x in whole.items()
  }


def test_a_request_may_have_a_limit_of_its_own(params):
  # Slots are refilled as responses end, and each is as it is without a limit.
  whole, wanted = answer(params, requests()), requests()
  wanted = [
      dataclasses.replace(request, limit=2 + i)
      for i, request in enumerate(wanted)
  ]
  cut = answer(params, wanted)
  reasons = collections.Counter()
  for (i, j), response in cut.items():
    np.testing.assert_array_equal(
        response.tokens, whole[i, j].tokens[: 2 + i]
    )
    stopped = response.tokens[-1] in STOP_IDS
    assert response.finish_reason == ("stop" if stopped else "length")
    reasons[response.finish_reason] += 1
  assert len(cut) == len(whole) and min(reasons.values()) > 5


def test_prefixes_have_buckets_up_to_the_longest_sequence():
  assert engine.prefix_buckets((8, 16), 26) == (8, 16, 26)
  assert engine.prefix_buckets((64, 128), 1000) == (64, 128, 256, 512, 1000)
  assert engine.prefix_buckets((16,), 16) == (16,)


def test_capacities_grow_by_half_or_a_third():
  assert engine.capacities(64) == (64,)
  assert engine.capacities(65) == (64, 128)
  assert engine.capacities(300) == (64, 128, 192, 256, 320)
  assert engine.capacities(1000) == (64, 128, 192, 256, 384, 512, 768, 1024)


def test_slots_have_the_room_that_they_need(params, monkeypatch):
  """It shrinks and grows with what is held; the tokens stay the same."""
  sampling = dataclasses.replace(PLAIN, max_new_tokens=200)
  late, early = requests(samples=1, lengths=(5, 5))
  late = dataclasses.replace(late, tokens=np.tile(late.tokens, 31), drawn=150)
  real, sizes = engine.slots_lib.decode, []

  def decode(static, weights, state):
    sizes.append(state.cache.capacity)
    return real(static, weights, state)

  monkeypatch.setattr(engine.slots_lib, "decode", decode)

  def run():
    made = engine.Engine(POLICY, params, (), sampling, SHAPES)
    return {i: contents(x) for i, _, x in made.run([late, early])}

  found = run()
  shrunk = sizes.index(64)
  assert sizes[0] == sizes[shrunk - 1] == 256
  assert sizes[shrunk:] == sorted(sizes[shrunk:]) and sizes[-1] == 256
  monkeypatch.setattr(engine, "capacities", lambda longest: (256,))
  assert run() == found


def test_a_response_without_room_is_refused(params):
  full = dataclasses.replace(
      requests(1, lengths=(12,))[0], drawn=PLAIN.max_new_tokens
  )
  with pytest.raises(ValueError, match="fewer than sampling.max_new_tokens"):
    answer(params, [full])


@pytest.mark.parametrize("length", (0, 17))
def test_a_prompt_outside_the_buckets_is_refused(params, length):
  with pytest.raises(ValueError, match=r"1 to 16: .*prompt_buckets is 16"):
    answer(params, requests(lengths=(3, length)))


def test_a_response_beyond_the_context_is_refused(params):
  sampling = sampler.SamplingSettings(max_new_tokens=510)
  with pytest.raises(ValueError, match=r"expected 1 to 2: .*context"):
    answer(params, requests(lengths=(3,)), sampling)


def test_damaged_weights_are_an_error(params):
  damaged = params | {"final_norm": params["final_norm"] * jnp.nan}
  with pytest.raises(FloatingPointError, match="not finite"):
    answer(damaged, requests())
