"""Numbers of a run: metrics.jsonl, TensorBoard, and a progress bar."""

from collections.abc import Mapping, Sequence
import json
import math
import pathlib
import time
from typing import Any

import jax
from rich import progress
from tensorboardX import event_file_writer
from tensorboardX import summary
from tensorboardX.proto import event_pb2

from jaxrl_llm.data import atomic


class MetricsWriter:
  """Appends records to metrics.jsonl and to TensorBoard event files.

  A record is one JSON object: `step` (updates applied or skipped when it was
  written), `kind` (update, positions, batch, evaluation, …) and its numbers or
  lists; a number that is not finite is written as null. What is said before an
  update bears the number of that update. Opening drops every record beyond the
  restored step, and a line that a kill cut short, so each step is there once.
  """

  def __init__(self, workdir: pathlib.Path | str, step: int, round: int = 0):
    """Opens the files of a run that stands at `step`, in `round`.

    Args:
      workdir: receives metrics.jsonl and tensorboard/.
      step: updates applied or skipped so far; 0 starts anew.
      round: records of earlier rounds stay whatever their step: a round
        without an update speaks of the step that comes after it.
    """
    workdir = pathlib.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    self._writes = jax.process_index() == 0
    if not self._writes:
      return
    path = workdir / "metrics.jsonl"
    drop_after(path, step, round)
    self._file = path.open("a", encoding="utf-8")
    # In this thread: SummaryWriter has one of its own, and when that dies of a
    # full disk the training waits for it without end.
    board = workdir / "tensorboard"
    board.mkdir(exist_ok=True)
    self._board = event_file_writer.EventsWriter(str(board / "events"))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._add(step + 1, session_log=start)  # Hides what lies beyond.

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    """Appends one record; it is on its way to disk when this returns."""
    if not self._writes:
      return
    self._append(step, kind, values)
    for name, value in values.items():
      if isinstance(value, (int, float)) and math.isfinite(value):
        scalar = summary.scalar(f"{kind}/{name}", value)
        self._add(step, summary=scalar)
    self._board.flush()

  def write_curves(
      self, step: int, kind: str, values: Mapping[str, Any]
  ) -> None:
    """Appends one record that holds lists; TensorBoard gets nothing of it."""
    if self._writes:
      self._append(step, kind, values)

  def _append(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
    """Appends a line to metrics.jsonl."""
    record = {"step": step, "kind": kind}
    record.update({name: _finite(value) for name, value in values.items()})
    self._file.write(json.dumps(record) + "\n")
    self._file.flush()

  def _add(self, step: int, **content) -> None:
    """Appends an event for TensorBoard."""
    event = event_pb2.Event(step=step, wall_time=time.time(), **content)
    self._board.write_event(event)

  def close(self) -> None:
    if self._writes:
      self._file.close()
      self._board.close()


def read(path: pathlib.Path | str) -> list[dict]:
  """Returns the records of a metrics.jsonl, up to a line that is none.

  The last line is none where a kill cut it short.
  """
  records = []
  for line in pathlib.Path(path).read_bytes().splitlines():
    record = _record(line)
    if record is None:
      break
    records.append(record)
  return records


def _record(line: bytes) -> dict[str, Any] | None:
  """Reads a line of metrics.jsonl; None where it is no record."""
  try:
    found = json.loads(line)
  except ValueError:
    return None
  if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
    return None
  step = found.get("step")
  return found if isinstance(step, int) else None


def drop_after(path: pathlib.Path, step: int, round: int = 0) -> None:
  """Rewrites a metrics file without what lies beyond a step of a round.

  Raises:
    ValueError: the file is damaged elsewhere than in its last line.
  """
  if not path.exists():
    return
  records, lines = read(path), path.read_bytes().splitlines()
  if len(records) < len(lines) - 1:
    raise ValueError(
        f"{path}: expected a record in each line, found none in line"
        f" {len(records) + 1} of {len(lines)}; restore the file, or delete that"
        " line to go on without it."
    )
  kept = [
      record
      for record in records
      if record["step"] <= step or record.get("round", round) < round
  ]
  beside = path.with_name(path.name + ".beside")
  lines = [json.dumps(record) + "\n" for record in kept]
  beside.write_text("".join(lines), encoding="utf-8")
  atomic.publish(beside, path)


def _finite(value):
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


class ProgressBar:
  """A rich bar over the updates of a round: tokens/s, ETA, reward, ratio."""

  def __init__(self, total: int, done: int, label: str):
    self._bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[numbers]}"),
        disable=jax.process_index() != 0,
    )
    self._task = self._bar.add_task(
        label, total=total, completed=done, numbers=""
    )
    self._last = time.monotonic()

  def __enter__(self):
    self._bar.start()
    return self

  def __exit__(self, *unused):
    self._bar.stop()

  def say(self, lines: Sequence[str]) -> None:
    """Prints lines above the bar."""
    for line in lines:
      self._bar.console.print(
          line, markup=False, highlight=False, soft_wrap=True
      )

  def advance(self, tokens: int, values: Mapping[str, float]) -> float:
    """Moves on by one update; returns trained tokens per second."""
    now = time.monotonic()
    rate = tokens / max(now - self._last, 1e-9)
    self._last = now
    shown = " ".join(f"{name} {value:.3g}" for name, value in values.items())
    self._bar.update(
        self._task, advance=1, numbers=f"{rate:.0f} tokens/s {shown}"
    )
    return rate
