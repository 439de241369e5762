"""Shards: what is written is what is read, whole or not at all."""

import dataclasses
import hashlib
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxrl_llm.data import manifest as manifests
from jaxrl_llm.data import shards

HERE = pathlib.Path(__file__).parent


def _assert_equal(found, expected):
  for field in dataclasses.fields(expected):
    one, other = getattr(found, field.name), getattr(expected, field.name)
    if isinstance(other, np.ndarray):
      assert one.dtype == other.dtype, field.name
    if field.name in ("temperature", "reward"):
      other = float(np.float32(other))
    if field.name == "reward_parts":
      other = {name: float(np.float32(part)) for name, part in other.items()}
    np.testing.assert_array_equal(one, other, err_msg=field.name)


def _digests(folder):
  return {
      path.name: hashlib.sha256(path.read_bytes()).hexdigest()
      for path in sorted(folder.iterdir())
  }


def test_records_come_back_as_they_were(write_folder, rollout):
  """Typed records; a reward of 0 is a reward, NaN stays NaN."""
  written = [rollout(number) for number in range(9)]
  written[4] = rollout(4, reward=float("nan"), role="baseline")
  written[5] = rollout(5, finish_reason="length", window_start=2)
  folder = shards.open_folder(write_folder("round", written))
  assert len(folder) == 9
  for found, expected in zip(folder, written):
    _assert_equal(found, expected)
  assert folder.metadata.sampling == {"temperature": 0.7, "stops": [1, 2]}
  again = pickle.loads(pickle.dumps(folder))
  _assert_equal(again[8], written[8])
  with pytest.raises(IndexError):
    folder[9]


def test_records_without_topk_and_reward_parts(write_folder, rollout):
  written = [rollout(0, topk=0, reward_parts={})]
  path = write_folder("bare", written, 1, topk=0, reward_parts=())
  _assert_equal(shards.open_folder(path)[0], written[0])


def test_a_stranger_reads_it_in_two_lines(write_folder, rollout):
  path = write_folder("round", [rollout(number) for number in range(5)])
  records = tfds.builder_from_directory(str(path)).as_data_source("train")
  found = [record["response_tokens"].tolist() for record in records]
  assert found == [rollout(i).response_tokens.tolist() for i in range(5)]
  assert records[2]["topk_ids"].shape == (5, 2)


def test_a_killed_writer_resumes_to_the_same_bytes(tmp_path, rollout, metadata):
  """SIGKILL before a rename, between shards and before the manifest.

  The bytes depend on the records alone: the folder written in several lives
  equals one written here in another order, in a process with other hashes.
  """
  folder = tmp_path / "killed"
  root = str(HERE.parents[1])
  command = [sys.executable, str(HERE / "killed_writer.py"), str(folder)]
  # The first name given is that of metadata.json.
  moments = [("3", "renaming"), ("2", "renaming"), ("1", "describing")]
  expected_missing = [[0, 1, 2, 3], [1, 2, 3], [2, 3], []]
  for moment, missing in zip([*moments, ("0", "never")], expected_missing):
    ended = subprocess.run(
        [*command, *moment],
        env=dict(os.environ, PYTHONPATH=root),
        capture_output=True,
        check=False,
    )
    assert f"missing {missing}" in ended.stdout.decode()
    killed = moment[1] != "never"
    assert ended.returncode == (-signal.SIGKILL if killed else 0)
    assert (folder / manifests.NAME).is_file() is not killed
    assert manifests.missing_folders([folder]) == ([folder] if killed else [])
    if killed:
      with pytest.raises(FileNotFoundError, match="not finished; run the same"):
        shards.open_folder(folder)
  whole = shards.ShardWriter(tmp_path / "whole", metadata(), 4)
  for index in (2, 0, 3, 1):
    whole.write(index, [rollout(i) for i in range(index * 8, index * 8 + 8)])
  whole.finish()
  found = _digests(folder)
  beside = [name for name in found if name.endswith(".beside")]
  assert not beside and found == _digests(tmp_path / "whole")


def test_a_folder_belongs_to_one_job(tmp_path, metadata):
  shards.ShardWriter(tmp_path, metadata(), 2)
  shards.ShardWriter(tmp_path, metadata(), 2)
  other = metadata(policy_version=4, sampling={"temperature": 0.7, "top_k": 5})
  with pytest.raises(ValueError) as error:
    shards.ShardWriter(tmp_path, other, 3)
  assert (
      "policy_version was 3, now 4; sampling.stops was [1, 2], now None;"
      " sampling.top_k was None, now 5; shards was 2, now 3; resume it"
  ) in str(error.value)


def test_a_written_shard_is_read_before_the_folder_is_finished(
    tmp_path, metadata, rollout
):
  writer = shards.ShardWriter(tmp_path, metadata(), 2)
  written = [rollout(0), rollout(1)]
  writer.write(1, written)
  for found, expected in zip(writer.read(1), written, strict=True):
    _assert_equal(found, expected)
  content = bytearray(writer.path(1).read_bytes())
  content[len(content) // 2] ^= 1
  writer.path(1).write_bytes(content)
  with pytest.raises(ValueError, match=r"00001-of-00002: damaged .*delete it"):
    writer.read(1)


def test_a_shard_is_written_once_and_never_empty(tmp_path, metadata, rollout):
  writer = shards.ShardWriter(tmp_path, metadata(), 2)
  with pytest.raises(ValueError, match="would be empty"):
    writer.write(0, [])
  writer.write(0, [rollout(0)])
  with pytest.raises(ValueError, match="already written"):
    writer.write(0, [rollout(0)])
  with pytest.raises(ValueError, match="shard 2 is not one of the 2"):
    writer.write(2, [rollout(0)])
  with pytest.raises(ValueError, match=r"shards \[1\] of 2 are not written"):
    writer.finish()
  with pytest.raises(ValueError, match="expected ≥ 1 shards, found 0"):
    shards.ShardWriter(tmp_path / "none", metadata(), 0)


def test_a_shard_damaged_before_the_manifest_is_not_blessed(
    tmp_path, metadata, rollout
):
  writer = shards.ShardWriter(tmp_path, metadata(), 1)
  writer.write(0, [rollout(0)])
  whole = writer.path(0).read_bytes()
  for damaged in (whole[:65536], whole[:100] + b"?" + whole[101:]):
    writer.path(0).write_bytes(damaged)
    with pytest.raises(ValueError, match="00000-of-00001: damaged since"):
      writer.finish()
  writer.path(0).unlink()
  writer.write(0, [rollout(0)])
  assert writer.finish().records == 1


BAD_LOGPROBS = np.array([-1, np.nan, -1], np.float32)
MISFITS = [
    ({"behavior_logprobs": BAD_LOGPROBS}, "behavior_.*: .*nan at token 1"),
    ({"behavior_logprobs": -np.ones(2, np.float32)}, r"shape \(3,\)"),
    ({"log_kept_mass": np.full(3, 0.5, np.float32)}, "log_kept_mass: .* 0.5"),
    ({"log_kept_mass": BAD_LOGPROBS}, "log_kept_mass: .*nan"),
    ({"behavior_logprobs": np.full(3, -np.inf, np.float32)}, "found -inf"),
    ({"topk_logprobs": np.full((3, 2), np.nan, np.float32)}, "topk_logprobs"),
    ({"topk_ids": np.zeros((3, 1), np.int32)}, r"shape \(3, 2\)"),
    ({"prompt_tokens": np.zeros(0, np.int32)}, "at least one prompt token"),
    ({"finish_reason": "eos"}, "finish_reason: unknown value 'eos'"),
    ({"role": "critic"}, "role: unknown value 'critic'"),
    ({"lineage": "other"}, "lineage: folder 'lineage', record 'other'"),
    ({"reward_parts": {"correct": 1.0}}, "reward_parts: folder"),
    ({"response_tokens": np.array([1, -1, 2], np.int32)}, "negative token id"),
    ({"temperature": float("nan")}, "temperature: expected finite and > 0"),
    ({"temperature": 0.0}, "temperature: expected finite and > 0"),
    (
        {"temperature": np.inf, "role": "baseline"},
        "temperature: expected finite and ≥ 0, found inf",
    ),
    ({"reward": -np.inf}, "reward: expected finite, or NaN, found -inf"),
    ({"window_start": 3}, "window_start: expected from 0 to 2, found 3"),
    ({"window_start": -1}, "window_start: expected from 0 to 2, found -1"),
    ({"round": 5}, "round: folder 0, record 5"),
]


@pytest.mark.parametrize(("changes", "message"), MISFITS)
def test_records_that_do_not_fit_are_refused(
    tmp_path, metadata, rollout, changes, message
):
  """Missing behaviour log-probs are an error; so is an unknown mass."""
  writer = shards.ShardWriter(tmp_path, metadata(), 1)
  with pytest.raises(ValueError, match=f"record .*{message}.*nothing was writ"):
    writer.write(0, [rollout(0, **changes)])
  assert writer.missing() == [0]


def test_tokens_outside_the_kept_set_may_have_no_mass(write_folder, rollout):
  """Truncated sampling gives -inf to entries of the top K."""
  logprobs = np.full((3, 2), -np.inf, np.float32)
  path = write_folder("kept", [rollout(0, topk_logprobs=logprobs)], 1)
  assert np.isneginf(shards.open_folder(path)[0].topk_logprobs).all()


def test_the_reader_refuses_what_does_not_fit(write_folder, rollout):
  path = write_folder("round", [rollout(number) for number in range(4)])
  shards.open_folder(path, tokenizer_fingerprint="tokenizer")
  with pytest.raises(ValueError, match="tokenizer tokenizer, .*is foreign"):
    shards.open_folder(path, tokenizer_fingerprint="foreign")
  with pytest.raises(FileNotFoundError, match="no such folder"):
    shards.open_folder(path / "nowhere")
  shard = path / shards.open_folder(path).manifest.shards[1]
  content = shard.read_bytes()
  shard.write_bytes(content[: len(content) // 2])
  with pytest.raises(ValueError, match="00001-of-00002: 65536 bytes.*truncat"):
    shards.open_folder(path)
  flipped = bytearray(content)
  flipped[-70_000] ^= 1
  shard.write_bytes(bytes(flipped))
  with pytest.raises(ValueError, match="00001-of-00002: its checksum"):
    shards.open_folder(path)
  shard.unlink()
  with pytest.raises(ValueError, match="00001-of-00002: missing; restore it"):
    shards.open_folder(path)


def test_a_truncated_shard_never_yields_empty_records(write_folder, rollout):
  """Cut after it was opened: TFDS alone gives None for every field."""
  path = write_folder("round", [rollout(number) for number in range(4)])
  folder = shards.open_folder(path)
  shard = path / folder.manifest.shards[1]
  os.truncate(shard, 65536)
  with pytest.raises(ValueError, match="00001-of-00002, record 1"):
    folder[3]


@pytest.mark.parametrize("records", [2, 5])
def test_a_manifest_of_other_counts_is_refused(write_folder, rollout, records):
  """Shards of 4 records, of which the manifest names fewer, or more."""
  path = write_folder("round", [rollout(number) for number in range(8)])
  content = json.loads((path / manifests.NAME).read_text())
  content["files"][content["shards"][1]]["records"] = records
  (path / manifests.NAME).write_text(json.dumps(content))
  with pytest.raises(ValueError, match=f"{4 + records} records, .* says 8"):
    shards.open_folder(path)
