"""Every kind of damage is found and named: file, record, remedy."""

import json
import os
import re

from array_record.python import array_record_module
import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core import example_serializer

from jaxrl_llm.data import manifest as manifests
from jaxrl_llm.data import schema
from jaxrl_llm.data import verify

REMEDY = "delete .*then run the same `generate` or `import-rollouts` again"


@pytest.fixture(name="folder")
def _folder(write_folder, rollout):
  return write_folder("round", [rollout(number) for number in range(8)])


def _shard(folder, index):
  return folder / manifests.read(folder).shards[index]


def _the_lines(folder, *patterns, **arguments):
  lines = verify.verify(folder, **arguments)
  assert len(lines) == len(patterns), lines
  for line, pattern in zip(lines, patterns):
    assert re.search(pattern, line), line
    assert "\n" not in line


def test_a_sound_folder_has_no_problems(folder):
  _the_lines(folder, tokenizer_fingerprint="tokenizer")


def test_unfinished_and_absent_folders(folder):
  (folder / manifests.NAME).unlink()
  _the_lines(folder, "round: no manifest.json.*run the same")
  _the_lines(folder / "nowhere", "nowhere: no such folder")


def test_truncated_file(folder):
  os.truncate(_shard(folder, 1), 65536)
  _the_lines(
      folder,
      f"00001-of-00002: 65536 bytes, the manifest says 131072.*{REMEDY}",
      f"00001-of-00002: (no array_record file|0 records).*{REMEDY}",
  )


def test_flipped_bit_names_the_record(folder):
  path = _shard(folder, 1)
  content = bytearray(path.read_bytes())
  reader = array_record_module.ArrayRecordReader(str(path))
  # A piece of the third record as it lies in the file, uncompressed or not,
  # is found by flipping bits until that record alone cannot be read.
  assert reader.num_records() == 4
  reader.close()
  for offset in range(400, 6000, 97):
    flipped = bytearray(content)
    flipped[offset] ^= 4
    path.write_bytes(bytes(flipped))
    lines = verify.verify(folder)
    assert re.search(f"00001-of-00002: its checksum.*{REMEDY}", lines[0])
    if any("record 2: unreadable" in line for line in lines):
      assert len(lines) == 2
      return
  pytest.fail("no flipped bit named its record")


def test_missing_shard_and_foreign_file(folder):
  path = _shard(folder, 0)
  path.rename(path.with_name("other.array_record-00000-of-00001"))
  _the_lines(
      folder,
      f"00000-of-00002: missing; restore it, or {REMEDY}",
      "other.array_record-00000-of-00001: not in manifest.json; delete it",
  )


def test_foreign_tokenizer(folder):
  _the_lines(
      folder,
      "metadata.json: written with tokenizer tokenizer, expected mine; use",
      tokenizer_fingerprint="mine",
  )


def test_another_schema_version(folder):
  path = folder / manifests.METADATA_NAME
  content = json.loads(path.read_text())
  path.write_text(json.dumps({**content, "schema_version": 99}))
  _the_lines(folder, "metadata.json: expected schema version 1, found 99; reg")
  path.write_text(json.dumps({**content, "mood": "good"}))
  _the_lines(folder, r"metadata.json: fields \['mood'\] are missing or unkn")


def test_damaged_manifest(folder):
  (folder / manifests.NAME).write_text('{"files": 3}')
  _the_lines(folder, "manifest.json: not a manifest.*delete it")
  for text in ('{"files": {}, "shards": []}', '{"files": {}, "shards": ["a"]}'):
    (folder / manifests.NAME).write_text(text)
    _the_lines(folder, "manifest.json: not a manifest.*delete it")
  (folder / manifests.NAME).write_text("[]")
  _the_lines(folder, "manifest.json: no JSON object")
  (folder / manifests.NAME).write_text('{"files')
  _the_lines(folder, "manifest.json: not JSON")


def test_duplicated_record(write_folder, rollout):
  twice = [rollout(0), rollout(1), rollout(2), rollout(0)]
  _the_lines(
      write_folder("twice", twice),
      "00001-of-00002, record 1: id .* also at .*0-of-00002, record 0; keep",
  )


def test_a_record_in_two_folders(write_folder, rollout):
  one = write_folder("one", [rollout(0), rollout(1)])
  two = write_folder("two", [rollout(2), rollout(1)])
  seen = {}
  assert not verify.verify(one, seen=seen)
  pattern = "two/.*00001-of-00002, record 0: id .*/one/.*keep one of the two"
  _the_lines(two, pattern, seen=seen)


def _write_unchecked(folder, changes):
  """Overwrites shard 0 with one record, and the manifest to match."""
  metadata = schema.FolderMetadata.from_json(
      {
          name: value
          for name, value in json.loads(
              (folder / manifests.METADATA_NAME).read_text()
          ).items()
          if name != "shards"
      },
      "metadata.json",
  )
  described = schema.features(metadata)
  records = tfds.builder_from_directory(str(folder)).as_data_source("train")
  example = {**records[0], **changes}
  serializer = example_serializer.ExampleSerializer(
      described.get_serialized_info()
  )
  path = _shard(folder, 0)
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  writer.write(serializer.serialize_example(described.encode_example(example)))
  writer.close()
  old = manifests.read(folder)
  files = {**old.files, path.name: manifests.entry(path, 1)}
  manifests.write(folder, manifests.Manifest(files, old.shards))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("behavior_logprobs", np.nan, "finite and ≤ 0, found nan at token 0"),
        ("behavior_logprobs", 0.5, "finite and ≤ 0, found 0.5 at token 0"),
        ("log_kept_mass", np.nan, "finite and ≤ 0, found nan at token 0"),
    ],
)
def test_impossible_logprobs(folder, field, value, message):
  _write_unchecked(folder, {field: np.full(3, value, np.float32)})
  pattern = f"00000-of-00002, record 0: {field}: .*{message}.*{REMEDY}"
  _the_lines(folder, pattern)
