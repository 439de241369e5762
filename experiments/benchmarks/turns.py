"""The same work in several programs by turns: what benchmarks share.

Each program is a process that loads its model once and then does a job per
line of its input, a JSON object, answering with a line of JSON. Only one works
at a time, and they take turns, so that a machine that slows down slows all.
"""

from collections.abc import Callable, Mapping, Sequence
import json
import os
import pathlib
import queue
import resource
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parent
Job = Mapping[str, Any]


class Program:
  """A worker in its own process and environment."""

  def __init__(self, name: str, command: Sequence[str], **environment: str):
    """Says how to start it.

    Args:
      name: in the tables.
      command: words of the command line.
      **environment: variables beside those of this process.
    """
    self.name = name
    self._command = command
    self._environment = os.environ | environment
    self._process = None

  def do(self, job: Job) -> dict[str, Any]:
    """Hands over a job and waits for its answer; the first job starts it.

    Raises:
      RuntimeError: the program ended instead.
    """
    if self._process is None:
      self._process = subprocess.Popen(
          self._command,
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          text=True,
          env=self._environment,
      )
    self._process.stdin.write(json.dumps(dict(job)) + "\n")
    self._process.stdin.flush()
    for line in self._process.stdout:
      if line.startswith("{"):
        return json.loads(line)
    raise RuntimeError(f"{self.name}: expected an answer, the program ended.")

  def close(self) -> None:
    """Ends it by ending its input; its next job starts it anew."""
    if self._process is not None:
      self._process.stdin.close()
      self._process.wait()
      self._process = None


class Pace:
  """A loop of some library, held between its rounds.

  The loop runs in a thread of its own and calls `pause` between two rounds.
  """

  def __init__(self, loop: Callable[["Pace"], None]):
    """Runs the loop up to its first pause.

    Args:
      loop: is given this object.
    """
    self._wanted = queue.SimpleQueue()
    self._reached = queue.SimpleQueue()
    threading.Thread(target=self._run, args=(loop,), daemon=True).start()
    self._wait()

  def _run(self, loop):
    try:
      loop(self)
    finally:
      self._reached.put(False)

  def _wait(self):
    """Waits for a pause.

    Raises:
      RuntimeError: the loop ended instead.
    """
    if not self._reached.get():
      raise RuntimeError("expected a pause of the loop, it ended.")

  def pause(self) -> None:
    """Waits until a round is wanted; for use inside the loop."""
    self._reached.put(True)
    self._wanted.get()

  def round(self) -> None:
    """Lets the loop run to its next pause."""
    self._wanted.put(True)
    self._wait()


def serve(work: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
  """Does jobs until the input ends, then ends the process.

  Threads of a loop that pauses would keep it alive.

  Args:
    work: by the job's entry "work": a function of its other entries, which
      returns what it measured.
  """
  for line in sys.stdin:
    job = json.loads(line)
    found = work[job.pop("work")](**job)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found | {"peak_mib": round(peak)}), flush=True)
  os._exit(0)


def timed(function: Callable[[], Any]) -> float:
  """Seconds of a call."""
  began = time.perf_counter()
  function()
  return time.perf_counter() - began


def compare(
    programs: Sequence[Program], job: Job, repeats: int
) -> dict[str, dict[str, float]]:
  """Does a job in each program by turns, once more than `repeats`.

  Returns:
    By program: seconds (median without the first), spread (largest less
    smallest, as a share of it), first_seconds (with starting, loading and
    compiling), peak_mib, and what else the last answer held.
  """
  answers = {program.name: [] for program in programs}
  for _ in range(repeats + 1):
    for program in programs:
      began = time.perf_counter()
      answer = program.do(job)
      answer["whole_seconds"] = time.perf_counter() - began
      answers[program.name].append(answer)
  result = {}
  for name, given in answers.items():
    later = [answer["seconds"] for answer in given[1:]]
    result[name] = given[-1] | {
        "seconds": statistics.median(later),
        "spread": (max(later) - min(later)) / statistics.median(later),
        "first_seconds": given[0]["whole_seconds"],
    }
    del result[name]["whole_seconds"]
  return result
