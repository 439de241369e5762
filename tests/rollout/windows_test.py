"""Tests of jaxrl_llm/rollout/windows.py: responses over several rounds."""

import dataclasses
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.data import index as indices
from jaxrl_llm.data import shards as shards_lib
from jaxrl_llm.data import verify
from jaxrl_llm.rollout import generator
from jaxrl_llm.rollout import planning
from jaxrl_llm.rollout import rewards
from jaxrl_llm.rollout import sampler
from jaxrl_llm.rollout import windows
from tests.rollout import tiny_round

FIRST = 3  # The round that begins; versions are its number plus 2.
LIMIT = tiny_round.SAMPLING.max_new_tokens
COUNTS = (4, 6, 3, 5)
PROMPTS = tiny_round.prompts()[: len(COUNTS)]


class Stopping:
  """The tokenizer with more ids that end a response: one token in eight."""

  stop_ids = frozenset({*tiny_round.TOKENIZER.stop_ids, *range(30, 63)})

  def __getattr__(self, name):
    return getattr(tiny_round.TOKENIZER, name)


def generate(folder, window, number=FIRST, **changes):
  settings = dataclasses.replace(tiny_round.SETTINGS, window=window)
  arguments = dict(
      tokenizer=Stopping(), prompts=PROMPTS, counts=COUNTS, settings=settings,
      round_number=number, version=number + 2,
  )
  return tiny_round.generate(folder, **{**arguments, **changes})


def records_of(folder):
  opened = shards_lib.open_folder(folder)
  return [opened[position] for position in range(len(opened))]


def chain(root, window, params=tiny_round.params):
  """Generates until all have ended; numbers and records of every round.

  `params` gives the weights of round 0, 1, …
  """
  found = []
  continued, counts = [], COUNTS
  while not found or continued:
    folder = root / f"round_{len(found)}"
    stats = generate(
        folder, window, FIRST + len(found), counts=counts, continued=continued,
        params=params(len(found)),
    )
    assert not verify.verify(folder, tiny_round.TOKENIZER.fingerprint)
    found.append((stats, records_of(folder)))
    continued = windows.unfinished(found[-1][1])
    counts = [0] * len(COUNTS)
  return found


def name_of(record):
  return record.prompt_id, record.sample_index


def digests(folder):
  return {
      path.name: hashlib.sha256(path.read_bytes()).hexdigest()
      for path in sorted(folder.iterdir())
  }


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
  """Windows of 3 tokens, each with weights of its own."""
  return chain(tmp_path_factory.mktemp("chain"), 3)


@pytest.fixture(scope="module")
def still(tmp_path_factory):
  """Windows of 3 tokens with weights that stay."""
  root = tmp_path_factory.mktemp("still")
  return chain(root, 3, lambda _: tiny_round.params())


def test_every_response_goes_on_until_it_ends(rounds):
  assert len(rounds) == 3
  before = {}
  ended = {}
  for number, (stats, records) in enumerate(rounds):
    expected = sum(COUNTS) if not number else len(before)
    assert len(records) == stats.records == expected
    for record in records:
      length = len(record.response_tokens)
      assert record.window_start == 3 * number < length
      assert name_of(record) in before or not number
      last = record.response_tokens[-1]
      stopped = last in Stopping.stop_ids
      cut = "length" if length == LIMIT else "window"
      assert record.finish_reason == ("stop" if stopped else cut)
      assert stopped or length == min(LIMIT, 3 * number + 3)
    before = {name_of(x): x for x in records if x.unfinished}
    ended |= {name_of(x): x for x in records if not x.unfinished}
  assert len(ended) == sum(COUNTS) and not before
  assert {x.finish_reason for x in ended.values()} == {"stop", "length"}
  ids = [record.record_id for _, records in rounds for record in records]
  assert len(set(ids)) == len(ids)


def test_what_was_drawn_before_stays_as_it_was_recorded(rounds):
  kept = 0
  for (_, earlier), (_, later) in zip(rounds, rounds[1:]):
    before = {name_of(x): x for x in earlier}
    for record in later:
      old = before[name_of(record)]
      kept += 1
      assert record.prompt_tokens.tolist() == old.prompt_tokens.tolist()
      assert record.group_id != old.group_id
      for name in (
          "response_tokens", "behavior_logprobs", "log_kept_mass",
          "policy_versions", "topk_ids", "topk_logprobs",
      ):
        np.testing.assert_array_equal(
            getattr(record, name)[: record.window_start], getattr(old, name)
        )
  assert kept > 10


def test_a_token_has_the_version_that_drew_it_and_is_trained_once(rounds):
  trained = {}
  for number, (_, records) in enumerate(rounds):
    for record in records:
      windows_of = np.arange(len(record.response_tokens)) // 3
      np.testing.assert_array_equal(
          record.policy_versions, FIRST + 2 + windows_of
      )
      mask = indices.trained_mask(record)
      np.testing.assert_array_equal(mask, windows_of == number)
      times = trained.setdefault(name_of(record), np.zeros(LIMIT, int))
      times[: len(mask)] += mask
      trained[name_of(record)] = times
  last = {name_of(x): x for _, records in rounds for x in records}
  for name, times in trained.items():
    length = len(last[name].response_tokens)
    assert times.tolist() == [1] * length + [0] * (LIMIT - length)


def test_an_unfinished_response_is_not_graded(tmp_path, rounds):
  seen = []

  def verifier(response, prompt):
    seen.append(response)
    return rewards.Verdict(0.0, None, False)

  grader = rewards.Grader(rewards.RewardSettings(), verifier)
  stats = generate(tmp_path / "round", 3, grader=grader)
  records = records_of(tmp_path / "round")
  ended = [x for x in records if not x.unfinished]
  assert 0 < len(ended) < len(records)
  assert seen == [x.response_text for x in ended]
  for record in records:
    assert record.reward == 0
    parts = list(record.reward_parts.values())
    assert np.isnan(parts).all() if record.unfinished else parts == [0.0] * 3
  assert stats.failed == 0 and stats.reward == 0
  assert stats.reasons == {
      "stop": len(ended), "window": len(records) - len(ended)
  }
  assert stats.continued == 0
  line = str(stats)
  assert f"(stop {len(ended)}, window {len(records) - len(ended)})" in line
  second = rounds[1][0]
  assert second.continued == second.records
  assert f"; continued {second.records}; verifier" in str(second)


def test_rewards_of_nothing_but_unfinished_ones_are_no_number(tmp_path):
  stats = generate(
      tmp_path / "round", 1, counts=(1, 0, 0, 0), prompts=PROMPTS,
      tokenizer=tiny_round.TOKENIZER,
  )
  assert stats.reasons == {"window": 1}
  assert np.isnan(stats.reward) and np.isnan(stats.reward_parts["correct"])
  assert (stats.failed, stats.finished) == (0, 0.0)


def test_tokens_and_log_probs_are_those_of_one_go(still):
  """Scored and drawn again in one piece, with the keys of the rounds."""
  policy, params = tiny_round.POLICY, tiny_round.params()
  records = [x for _, found in still for x in found if not x.unfinished]
  longest = [x for x in records if len(x.response_tokens) > 6]
  assert len(longest) > 3
  width = 64
  vocabulary = policy.config.vocab_size
  score = jax.jit(policy.token_logprobs)
  for record in longest:
    row = np.concatenate([record.prompt_tokens, record.response_tokens])
    start, length = len(record.prompt_tokens), len(record.response_tokens)
    tokens = np.pad(row, (0, width - len(row)))[None].astype(np.int32)
    filled = (np.arange(width) < len(row)).astype(np.int32)[None]
    scored = score(
        params, tokens, filled, filled,
        np.arange(width, dtype=np.int32)[None],
        np.ones(tokens.shape, np.float32),
        gather_ids=jnp.broadcast_to(
            jnp.arange(vocabulary), (1, width, vocabulary)
        ),
    )
    full = record.behavior_logprobs + record.log_kept_mass
    own = np.asarray(scored.logprobs)[0, start : start + length]
    np.testing.assert_allclose(full, own, atol=1e-4)
    assert (record.log_kept_mass < 0).all()  # top_p is 0.9.
    words = np.concatenate([
        sampler.request_words(
            "rollout", 7, FIRST + t // 3, [record.prompt_id],
            [record.sample_index],
        )
        for t in range(length)
    ])
    drawn = sampler.draw(
        scored.gathered[0, start : start + length],
        sampler.response_keys(jnp.asarray(words)), jnp.arange(length),
        jnp.ones(length), tiny_round.SAMPLING.truncation,
    )
    np.testing.assert_array_equal(drawn.tokens, record.response_tokens)


def test_one_window_for_all_is_no_window(tmp_path):
  whole = tmp_path / "whole"
  stats = generate(whole, 0)
  assert set(stats.reasons) == {"stop", "length"}
  for window in (LIMIT, LIMIT + 5):
    folder = tmp_path / f"window_{window}"
    assert generate(folder, window).reasons == stats.reasons
    for path in sorted(whole.glob("*.array_record*")):
      assert (folder / path.name).read_bytes() == path.read_bytes()


def test_evaluation_knows_no_window():
  answers = [
      generator.sample(
          tiny_round.POLICY, tiny_round.params(), tiny_round.TOKENIZER,
          PROMPTS[:1], 2, tiny_round.SAMPLING,
          dataclasses.replace(tiny_round.SETTINGS, window=window), seed=0,
          progress=False,
      )
      for window in (0, 2)
  ]
  whole, windowed = ([x.response for x in found[0]] for found in answers)
  assert [len(x.tokens) for x in whole] == [LIMIT] * 2
  assert [x.tokens.tolist() for x in windowed] == [
      x.tokens.tolist() for x in whole
  ]


def test_windows_of_one_token(tmp_path):
  rounds = chain(tmp_path, 1)
  assert len(rounds) == LIMIT
  for number, (_, records) in enumerate(rounds):
    assert all(x.window_start == number for x in records)
    assert all(len(x.response_tokens) == number + 1 for x in records)
  assert not any(x.unfinished for x in rounds[-1][1])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
  """A round with responses that go on and a prompt that is new."""
  root = tmp_path_factory.mktemp("mixed")
  generate(root / "first", 3, counts=(9, 8, 0, 0))
  continued = windows.unfinished(records_of(root / "first"))
  arguments = dict(number=FIRST + 1, counts=(0, 0, 6, 0), continued=continued)
  generate(root / "second", 3, **arguments)
  return root / "second", arguments


def test_those_that_go_on_come_first_and_new_ones_follow(mixed):
  folder, arguments = mixed
  records, continued = records_of(folder), arguments["continued"]
  count = len(continued)
  assert 5 < count < 17 and len(records) == count + 6
  assert list(map(name_of, records[:count])) == list(map(name_of, continued))
  assert all(x.window_start == 3 for x in records[:count])
  assert [name_of(x) for x in records[count:]] == [
      (PROMPTS[2].prompt_id, j) for j in range(6)
  ]
  assert all(x.window_start == 0 for x in records[count:])


def test_a_missing_shard_of_those_that_go_on_is_made_again(mixed, tmp_path):
  folder, arguments = mixed
  again = tmp_path / "again"
  again.mkdir()
  shards = sorted(folder.glob("*.array_record*"))
  assert len(shards) > 1
  for path in folder.iterdir():
    if path != shards[0] and path.name != "manifest.json":
      (again / path.name).write_bytes(path.read_bytes())
  assert generate(again, 3, **arguments).generated == 10
  assert digests(again) == digests(folder)


def test_hosts_share_those_that_go_on(mixed, tmp_path):
  folder, arguments = mixed
  hosts = [tmp_path / f"host_{host:03d}" for host in range(2)]
  for host, path in enumerate(hosts):
    generate(path, 3, host=host, hosts=2, **arguments)
  shared = {x.record_id: x for path in hosts for x in records_of(path)}
  whole = records_of(folder)
  assert len(shared) == len(whole)
  for record in whole:
    np.testing.assert_array_equal(
        shared[record.record_id].response_tokens, record.response_tokens
    )


def test_other_records_before_are_another_round(mixed):
  folder, arguments = mixed
  before = digests(folder)
  first, *rest = arguments["continued"]
  for name, value in (
      ("response_tokens", first.response_tokens + 1),
      ("behavior_logprobs", first.behavior_logprobs - 1),
      ("policy_versions", first.policy_versions - 1),
      ("record_id", 1),
  ):
    other = dataclasses.replace(first, **{name: value})
    with pytest.raises(ValueError, match=r"config\.job\.continued was"):
      generate(folder, 3, **{**arguments, "continued": [other, *rest]})
  assert digests(folder) == before


def test_the_order_of_those_that_go_on_is_that_of_no_shard(mixed):
  continued = mixed[1]["continued"]
  ended = dataclasses.replace(continued[0], finish_reason="stop")
  shuffled = [ended, *continued[::-1]]
  assert list(map(name_of, windows.unfinished(shuffled))) == list(
      map(name_of, continued)
  )


def test_plan_lays_those_that_go_on_before_new_samples():
  plan = planning.plan(
      [0, 3, 0, 4], 4, continued=[(2, 5), (0, 1), (2, 0), (0, 7), (0, 8)]
  )
  shapes = [
      [(x.prompt, x.first, x.count, x.continued) for x in shard]
      for shard in plan
  ]
  assert shapes == [
      [(2, 5, 1, 0), (0, 1, 1, 1), (2, 0, 1, 2), (0, 7, 1, 3)],
      [(0, 8, 1, 4), (1, 0, 3, None)],
      [(3, 0, 4, None)],
  ]
  # All go on: no prompt is posed.
  assert len(planning.plan([0], 4, continued=[(0, j) for j in range(9)])) == 3


@pytest.mark.parametrize(
    "changes, match",
    (
        (dict(counts=(1, 0, 6, 0)), "no new samples of prompt 0, whose"),
        (dict(prompts=PROMPTS[1:], counts=(0, 6, 0)), "of 3 prompts, found"),
        (dict(baselines=True), "window: expected 0 where greedy baselines"),
    ),
)
def test_a_round_that_does_not_fit_is_refused(mixed, tmp_path, changes, match):
  with pytest.raises(ValueError, match=match):
    generate(tmp_path / "new", 3, **{**mixed[1], **changes})
  assert not (tmp_path / "new").exists()


def test_a_response_that_ended_does_not_go_on(mixed, tmp_path):
  first = dataclasses.replace(mixed[1]["continued"][0], finish_reason="stop")
  with pytest.raises(ValueError, match="found one that ended with 'stop'"):
    generate(tmp_path / "new", 3, **{**mixed[1], "continued": [first]})
