"""Tests of jaxrl_llm/rollout/generator.py, and of its plan and records."""

import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxrl_llm.data import shards as shards_lib
from jaxrl_llm.data import verify
from jaxrl_llm.rollout import engine
from jaxrl_llm.rollout import generator
from jaxrl_llm.rollout import planning
from jaxrl_llm.rollout import rewards
from jaxrl_llm.rollout import sampler
from tests.rollout import tiny_round

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A round that nothing interrupted: its folder and its numbers."""
  folder = tmp_path_factory.mktemp("round") / "host_000"
  return folder, tiny_round.generate(folder)


def digests(folder):
  return {
      path.name: hashlib.sha256(path.read_bytes()).hexdigest()
      for path in sorted(folder.iterdir())
  }


def shapes(pieces):
  return [
      [dataclasses.astuple(piece)[:4] for piece in shard] for shard in pieces
  ]


def test_plan_keeps_groups_whole_and_splits_only_large_ones():
  plan = planning.plan([4, 6, 3, 25, 0, 4], 10)
  assert shapes(plan) == [
      [(0, 0, 4, False), (1, 0, 6, False)],
      [(2, 0, 3, False), (3, 0, 7, False)],
      [(3, 7, 10, False)],
      [(3, 17, 8, False)],
      [(5, 0, 4, False)],
  ]


def test_plan_with_baselines():
  plan = planning.plan([9, 10, 0, 2], 10, baselines=True)
  assert shapes(plan) == [
      [(0, 0, 9, True)],
      [(1, 0, 9, True)],
      [(1, 9, 1, False), (3, 0, 2, True)],
  ]
  assert plan[0][0].sample_indices == [*range(9), planning.BASELINE]
  ids = [
      (x.prompt, j)
      for shard in plan
      for x in shard
      for j in x.sample_indices
  ]
  assert len(set(ids)) == len(ids) == 9 + 10 + 2 + 3


@pytest.mark.parametrize("counts", ([], [0, 0], [3, -1]))
def test_plan_refuses_nothing_to_do(counts):
  with pytest.raises(ValueError, match="at least one response, found"):
    planning.plan(counts, 10)


def test_records_say_what_was_sampled(whole):
  path, _ = whole
  assert not verify.verify(path, tiny_round.TOKENIZER.fingerprint)
  folder = shards_lib.open_folder(path)
  prompts = {x.prompt_id: x for x in tiny_round.prompts()}
  counts = dict(zip(prompts, tiny_round.COUNTS))
  seen = {key: [] for key in prompts}
  for position in range(len(folder)):
    record = folder[position]
    prompt = prompts[record.prompt_id]
    seen[record.prompt_id].append(record.sample_index)
    assert record.prompt_tokens.tolist() == prompt.tokens.tolist()
    assert (record.prompt_text, record.reference_answer) == (
        prompt.text, prompt.answer
    )
    assert (record.round, record.lineage, record.role) == (3, "tiny", "train")
    assert (record.policy_versions == 5).all() and record.response_mask.all()
    assert record.topk_ids.shape == (len(record.response_tokens), 2)
    ended = record.response_tokens[-1] in tiny_round.TOKENIZER.stop_ids
    assert ended == (record.finish_reason == "stop")
    text = bytes(int(x) for x in record.response_tokens if x < 256)
    assert record.response_text == text.decode("utf-8", "replace")
    assert record.reward == record.reward_parts["correct"]
  assert {k: len(v) for k, v in seen.items()} == counts
  assert all(sorted(v) == list(range(len(v))) for v in seen.values())
  metadata = folder.metadata
  assert metadata.sampling["top_p"] == 0.9 and metadata.policy_version == 5
  assert metadata.config["note"] == "tiny"
  assert metadata.config["job"]["generation"]["slots"] == 8


def test_numbers_of_the_round(whole):
  path, stats = whole
  folder = shards_lib.open_folder(path)
  records = [folder[i] for i in range(len(folder))]
  lengths = [len(x.response_tokens) for x in records]
  masses = np.exp(np.concatenate([x.log_kept_mass for x in records]))
  assert (stats.records, stats.prompts, stats.failed) == (58, 9, 0)
  assert stats.generated == 58 and stats.tokens_per_second > 0
  np.testing.assert_allclose(stats.length, np.mean(lengths))
  np.testing.assert_allclose(stats.kept_mass, masses.mean(), rtol=1e-6)
  np.testing.assert_allclose(stats.reward, np.mean([x.reward for x in records]))
  finished = [x.finish_reason == "stop" for x in records]
  np.testing.assert_allclose(stats.finished, np.mean(finished))
  parsed = [x.reward_parts["parsed"] for x in records]
  np.testing.assert_allclose(stats.reward_parts["parsed"], np.mean(parsed))
  assert "58 responses to 9 prompts: reward" in str(stats)


def test_a_finished_round_is_read_and_nothing_is_made(whole, monkeypatch):
  path, stats = whole
  before = digests(path)
  monkeypatch.setattr(engine, "Engine", None)
  again = tiny_round.generate(path)
  assert digests(path) == before
  fresh = dict(generated=0, seconds=0.0, tokens_per_second=0.0)
  found = dataclasses.replace(stats, **fresh)
  assert repr(dataclasses.replace(again, tokens_per_second=0.0)) == repr(found)


def test_killed_at_any_moment_it_resumes_to_the_same_bytes(whole, tmp_path):
  folder = tmp_path / "host_000"
  script = [sys.executable, "-m", "tests.rollout.tiny_round", str(folder)]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
  kills = 0
  for wanted in (1, 4):
    with subprocess.Popen(
        script, cwd=HERE.parents[1], env=environment, stdout=subprocess.PIPE
    ) as process:
      while (
          len(list(folder.glob("*.array_record*"))) < wanted
          and process.poll() is None
      ):
        time.sleep(0.001)
      process.kill()
      kills += process.wait() == -9
  assert kills == 2
  assert not (folder / "manifest.json").is_file()
  stats = tiny_round.generate(folder)
  assert 0 < stats.generated < stats.records
  assert digests(folder) == digests(whole[0])


def test_a_missing_shard_is_made_again_alone(whole, tmp_path):
  # The unit of generation is one shard: it does not depend on the others.
  folder = tmp_path / "host_000"
  folder.mkdir()
  for path in whole[0].iterdir():
    if "00002-of" not in path.name and path.name != "manifest.json":
      (folder / path.name).write_bytes(path.read_bytes())
  stats = tiny_round.generate(folder)
  assert stats.generated == 10 and digests(folder) == digests(whole[0])


def draws_of(*folders):
  """The sampled part of every record, by id; each id may appear once."""
  records = [
      record
      for path in folders
      for folder in [shards_lib.open_folder(path)]
      for record in (folder[position] for position in range(len(folder)))
  ]
  draws = {
      x.record_id: (x.response_tokens.tolist(), x.behavior_logprobs.tolist())
      for x in records
  }
  assert len(draws) == len(records)
  return draws


def test_a_record_does_not_depend_on_its_shard(whole, tmp_path):
  # Neither on the shards' size nor on how many hosts there are.
  settings = dataclasses.replace(tiny_round.SETTINGS, records_per_shard=64)
  tiny_round.generate(tmp_path / "one_shard", settings=settings)
  hosts = [tmp_path / f"host_{host:03d}" for host in range(2)]
  for host, path in enumerate(hosts):
    tiny_round.generate(path, host=host, hosts=2)
  expected = draws_of(whole[0])
  assert draws_of(tmp_path / "one_shard") == expected
  assert draws_of(*hosts) == expected
  # Samples of a prompt are drawn on their own: hardly two are alike.
  assert len({str(draw) for draw in expected.values()}) > 50


def test_a_folder_of_other_settings_is_refused(whole):
  path, _ = whole
  before = digests(path)
  other = dataclasses.replace(tiny_round.SAMPLING, top_p=0.8)
  with pytest.raises(ValueError, match=r"sampling\.top_p was 0\.9, now 0\.8"):
    tiny_round.generate(path, sampling=other)
  with pytest.raises(ValueError, match=r"config\.job\.seed was 7, now 8"):
    tiny_round.generate(path, seed=8)
  with pytest.raises(ValueError, match="policy_version was 5, now 6; "):
    tiny_round.generate(path, version=6)
  with pytest.raises(ValueError, match="weights_fingerprint was"):
    tiny_round.generate(path, params=tiny_round.params(seed=1))
  with pytest.raises(ValueError, match=r"config\.job\.plan was"):
    tiny_round.generate(path, counts=(5, 5, *tiny_round.COUNTS[2:]))
  assert digests(path) == before


@pytest.mark.parametrize(
    "changes, match",
    (
        (
            dict(sampling=sampler.SamplingSettings(temperature=0.0)),
            "expected a number > 0 for rollouts",
        ),
        (dict(prompts=tiny_round.prompts()[:1] * 10), "found 1 in 10 prompts"),
        (dict(counts=(1, 2)), "found 2 counts, 10 prompts"),
        (dict(host=8, hosts=9), "7 shards and 9 hosts; lower"),
    ),
)
def test_arguments_that_do_not_fit_are_refused(changes, match, tmp_path):
  with pytest.raises(ValueError, match=match):
    tiny_round.generate(tmp_path / "new", **changes)
  assert not (tmp_path / "new").exists()


def test_failed_verifiers_and_baselines(tmp_path):
  def fail_on_odd(response, prompt):
    if prompt.prompt_id % 2:
      raise RuntimeError("no")
    return rewards.Verdict(1.0, "1", False)

  grader = rewards.Grader(rewards.RewardSettings(), fail_on_odd)
  path = tmp_path / "host_000"
  stats = tiny_round.generate(
      path, grader=grader, baselines=True, prompts=tiny_round.prompts()[:3],
      counts=(2, 2, 2),
  )
  assert (stats.records, stats.failed, stats.reward) == (9, 2, 1.0)
  folder = shards_lib.open_folder(path)
  records = [folder[i] for i in range(9)]
  assert [np.isnan(x.reward) for x in records] == [*[0] * 3, *[1] * 3, *[0] * 3]
  for greedy in records[2::3]:
    assert (greedy.role, greedy.sample_index) == ("baseline", -1)
    assert greedy.temperature == 0.0 and not greedy.log_kept_mass.any()
  prompts = tiny_round.prompts()[:3]
  answers = generator.sample(
      tiny_round.POLICY, tiny_round.params(), tiny_round.TOKENIZER, prompts, 1,
      dataclasses.replace(tiny_round.SAMPLING, temperature=0.0),
      tiny_round.SETTINGS, seed=0, stream="baseline", progress=False,
  )
  assert [x[0].response.tokens.tolist() for x in answers] == [
      x.response_tokens.tolist() for x in records[2::3]
  ]


def test_evaluation_has_a_stream_of_its_own(whole):
  prompts = tiny_round.prompts()[1:3]

  def draw(**changes):
    answers = generator.sample(
        tiny_round.POLICY, tiny_round.params(), tiny_round.TOKENIZER, prompts,
        5, tiny_round.SAMPLING, tiny_round.SETTINGS,
        **{"seed": 7, "progress": False, **changes},
    )
    return [
        [(x.response.tokens.tolist(), x.text) for x in row] for row in answers
    ]

  first = draw()
  assert [len(row) for row in first] == [5, 5]
  assert draw() == first
  assert draw(stream="rollout") != first
  assert draw(seed=8) != first
  tokens, text = first[0][0]
  assert text == tiny_round.TOKENIZER.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize(
    "name, value",
    (
        ("slots", 0),
        ("records_per_shard", 0),
        ("prompt_buckets", ()),
        ("prompt_buckets", (64, 32)),
        ("prompt_buckets", (64.5,)),
        ("prompt_buckets", ("abc",)),
    ),
)
def test_settings_name_the_key_they_refuse(name, value):
  with pytest.raises(ValueError, match=rf"^generation\.{name}: expected"):
    generator.GenerationSettings(**{name: value})
