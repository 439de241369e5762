"""metrics.jsonl has each step once, whatever was killed."""

import errno
import json
import math

import numpy as np
import pytest
from tensorboardX import record_writer

from jaxrl_llm import types
from jaxrl_llm.training import metrics


def test_a_resumed_file_has_each_step_once(tmp_path):
  writer = metrics.MetricsWriter(tmp_path, 0)
  for step in range(1, 6):
    writer.write(step, "update", {"loss": step / 2})
  writer.close()
  # A kill in the middle of a line, after a checkpoint at step 3.
  path = tmp_path / "metrics.jsonl"
  with path.open("a") as file:
    file.write('{"step": 6, "ki')
  writer = metrics.MetricsWriter(tmp_path, 3)
  for step in (4, 5):
    writer.write(step, "update", {"loss": -step})
  writer.close()
  records = metrics.read(path)
  assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
  assert [record["loss"] for record in records] == [0.5, 1, 1.5, -4, -5]


def test_a_round_without_updates_stays_known(tmp_path):
  """Its record bears the step to come, and is dropped with its round alone."""
  writer = metrics.MetricsWriter(tmp_path, 4, 1)
  writer.write(5, "batch", {"round": 1})
  writer.close()
  path = tmp_path / "metrics.jsonl"
  metrics.MetricsWriter(tmp_path, 4, 2).close()
  assert [record["round"] for record in metrics.read(path)] == [1]
  metrics.MetricsWriter(tmp_path, 4, 1).close()
  assert metrics.read(path) == []


def test_the_file_is_strict_json(tmp_path):
  writer = metrics.MetricsWriter(tmp_path, 0)
  writer.write(1, "update", {"reward": float("nan"), "max": -math.inf})
  writer.close()

  def refuse(text):
    raise AssertionError(text)

  line = (tmp_path / "metrics.jsonl").read_text()
  record = json.loads(line, parse_constant=refuse)
  assert record == {"step": 1, "kind": "update", "reward": None, "max": None}


def test_a_full_disk_is_said_at_once(tmp_path, monkeypatch):
  def refuse(*unused):
    raise OSError(errno.ENOSPC, "No space left on device")

  writer = metrics.MetricsWriter(tmp_path, 0)
  monkeypatch.setattr(record_writer.RecordWriter, "write", refuse)
  with pytest.raises(OSError, match="No space"):
    writer.write(1, "update", {"loss": 1.0})


def test_tensorboard_gets_the_scalars(tmp_path):
  writer = metrics.MetricsWriter(tmp_path, 0)
  writer.write(1, "update", {"loss": 2.0, "note": "text stays out"})
  writer.close()
  events = list((tmp_path / "tensorboard").glob("events*"))
  assert len(events) == 1
  assert b"update/loss" in events[0].read_bytes()


def test_sample_size_is_pooled_over_microbatches():
  """0.9, not the mean 1.0 of the parts; with tens 0.599."""
  for other, want in ((2.0, 0.9), (10.0, 0.599)):
    parts = [
        {"w": types.Moments.of(np.full(4, value, np.float32), np.ones(4, bool))}
        for value in (1.0, other)
    ]
    pooled = types.finish_metrics(types.merge_metrics(*parts))
    assert pooled["w/ess"] == pytest.approx(want, abs=5e-4)


def test_damage_in_the_middle_is_no_kill_and_loses_nothing(tmp_path):
  path = tmp_path / "metrics.jsonl"
  lines = [json.dumps({"step": n, "kind": "update"}) for n in range(4)]
  damaged = "\n".join([lines[0], lines[1][:9], *lines[2:]])
  path.write_text(damaged)
  with pytest.raises(ValueError, match="none in line 2 of 4; restore"):
    metrics.drop_after(path, 3)
  assert path.read_text() == damaged


def test_a_last_line_that_is_no_text_is_left_out(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.write_bytes(b'{"step": 0, "kind": "update"}\n{"st\xff')
  metrics.drop_after(path, 3)
  assert path.read_bytes() == b'{"step": 0, "kind": "update"}\n'
