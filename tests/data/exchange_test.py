"""Records as rows of JSON and Parquet, and back."""

import dataclasses
import json

import numpy as np
import pytest

from jaxrl_llm.data import dump_files
from jaxrl_llm.data import exchange
from jaxrl_llm.data import schema


def odd_rollout(rollout):
  """A record with everything that a format may lose."""
  found = rollout(3)
  topk = found.topk_logprobs.copy()
  topk[0, 1] = -np.inf
  return dataclasses.replace(
      found,
      record_id=2**63 - 1,
      behavior_logprobs=np.nextafter(found.behavior_logprobs, np.float32(-9)),
      topk_logprobs=topk,
      response_mask=np.arange(found.response_mask.size) != 1,
      reward=float("nan"),
      reward_parts={"correct": float("nan"), "format": float(np.float32(0.1))},
      temperature=float(np.float32(0.7)),
  )


def write(path, rows, metadata):
  if path.suffix == ".parquet":
    dump_files.write_parquet(path, rows, exchange.columns(metadata))
  else:
    dump_files.write_jsonl(path, rows)


def assert_equal(found, wanted):
  """Compares every field; NaN equals NaN, and types and dtypes count."""
  for field in dataclasses.fields(wanted):
    a, b = (getattr(x, field.name) for x in (found, wanted))
    assert type(a) is type(b), field.name
    if isinstance(b, np.ndarray):
      assert a.dtype == b.dtype, field.name
    np.testing.assert_equal(a, b, err_msg=field.name)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("topk,parts", [(2, True), (0, False)])
def test_row_gives_back_an_equal_record(
    suffix, topk, parts, tmp_path, rollout, metadata
):
  wanted, described = odd_rollout(rollout), metadata()
  if not parts:
    described = metadata(topk=topk, reward_parts=())
    wanted = dataclasses.replace(
        wanted,
        topk_ids=wanted.topk_ids[:, :0],
        topk_logprobs=wanted.topk_logprobs[:, :0],
        reward_parts={},
    )
  path = tmp_path / f"d.{suffix}"
  write(path, [exchange.row(wanted, described)], described)
  ((place, row),) = dump_files.read(path)
  found, folder, weight = exchange.record(row, place)
  assert_equal(found, wanted)
  stored = json.loads(json.dumps(described.to_json()))
  assert folder.to_json() == stored and weight is None


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_weight_of_the_prompt_travels_with_the_record(
    suffix, tmp_path, rollout, metadata
):
  weights = {str(rollout(0).prompt_id): 2.5}
  described = metadata(config={schema.PROMPT_WEIGHTS: weights, "seed": 1})
  path = tmp_path / f"d.{suffix}"
  rows = [exchange.row(rollout(n), described) for n in (0, 4)]
  write(path, rows, described)
  found = [exchange.record(row, place) for place, row in dump_files.read(path)]
  assert [weight for _, _, weight in found] == [2.5, 1.0]
  assert found[0][1].config == {"seed": 1}


def test_json_is_that_of_the_standard(rollout, metadata):
  text = json.dumps(
      exchange.row(odd_rollout(rollout), metadata()), allow_nan=False
  )
  assert json.loads(text)["reward"] is None


@pytest.mark.parametrize(
    "change,expected",
    [
        (lambda row: row.pop("reward"), "reward: the field is missing"),
        (lambda row: row.update(extra=1), "extra: the field is missing or unk"),
        (lambda row: row.pop("folder"), "set import_rollouts.format"),
        (lambda row: row.update(response_tokens="x"), "something else"),
        (lambda row: row.update(behavior_logprobs=[None, "x"]), "something"),
        (lambda row: row.update(record_id=None), "something else"),
    ],
)
def test_row_that_was_not_exported_is_refused(
    change, expected, rollout, metadata
):
  row = exchange.row(rollout(1), metadata())
  change(row)
  with pytest.raises(ValueError, match=expected):
    exchange.record(row, "d.jsonl:1")
