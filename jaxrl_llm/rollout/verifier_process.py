"""Verification in processes that can be killed: time-outs that always work.

A signal alarm fires only in the main thread, and a thread cannot be stopped.
So whatever may compute for long runs in worker processes: fresh interpreters
without jax, fed through pipes, killed when they are late. They may be called
from any thread, and from a forked or pickled copy of their owner.

`python -m jaxrl_llm.rollout.verifier_process` is such a worker.
"""

import json
import math
import os
import pathlib
import pickle
import queue
import selectors
import signal
import struct
import subprocess
import sys
import time
from typing import Any

STARTUP_SECONDS = 120.0
_MEMORY_BYTES = 4 << 30
_HEADER = struct.Struct("<I")


class VerifierError(RuntimeError):
  """The verifier raised, or its process died."""


class VerifierTimeout(VerifierError):
  """The verifier took longer than it may."""


class Worker:
  """One worker process; used by one thread at a time."""

  def __init__(self, preparation: tuple[Any, ...]):
    """Starts the process and prepares it.

    Args:
      preparation: name and arguments of a first call, which makes imports and
        scorers ready outside of any time-out of the verifier.
    """
    root = str(pathlib.Path(__file__).resolve().parents[2])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    self._process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    self._buffer = b""
    self.call(preparation, STARTUP_SECONDS)

  def call(self, request: tuple[Any, ...], timeout: float) -> Any:
    """Sends (name, *arguments) and waits for the value.

    Raises:
      VerifierTimeout: late; the process is dead afterwards.
      VerifierError: the call raised, or the process died.
    """
    payload = pickle.dumps((timeout, *request))
    try:
      self._process.stdin.write(_HEADER.pack(len(payload)) + payload)
      self._process.stdin.flush()
      reply = json.loads(self._line(time.monotonic() + timeout))
    except (BrokenPipeError, EOFError) as error:
      self.close()
      raise VerifierError(
          f"{request[0]}: the verifier process died (out of memory?)."
      ) from error
    if "error" in reply:
      raise VerifierError(reply["error"])
    return reply["value"]

  def alive(self) -> bool:
    """Whether the process still runs."""
    return self._process.poll() is None

  def close(self) -> None:
    """Kills the process."""
    self._process.kill()
    self._process.wait()
    self._process.stdin.close()
    self._process.stdout.close()

  def _line(self, deadline: float) -> bytes:
    """Reads one line; `deadline` on the monotonic clock, in seconds."""
    descriptor = self._process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
      selector.register(descriptor, selectors.EVENT_READ)
      while b"\n" not in self._buffer:
        if not selector.select(max(0.0, deadline - time.monotonic())):
          if time.monotonic() < deadline:
            continue
          self.close()
          raise VerifierTimeout("timeout")
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
          raise EOFError
        self._buffer += chunk
    line, _, self._buffer = self._buffer.partition(b"\n")
    return line


class Pool:
  """Workers that are started when first needed and replaced when killed."""

  def __init__(self, preparation: tuple[Any, ...], size: int):
    self._preparation = preparation
    self.size = size
    self._reset()

  def call(self, *request: Any, timeout: float) -> Any:
    """Calls in a free worker, waiting for one; see `Worker.call`."""
    if os.getpid() != self._owner:
      self._reset()
    worker = self._free.get()
    try:
      if worker is None or not worker.alive():
        worker = Worker(self._preparation)
      return worker.call(request, timeout)
    except VerifierTimeout:
      worker = None
      raise VerifierTimeout(
          f"{request[0]}: no verdict in {timeout} s"
      ) from None
    finally:
      self._free.put(worker)

  def close(self) -> None:
    """Kills the workers that are idle; the pool can be used again."""
    for _ in range(self.size):
      worker = self._free.get()
      if worker is not None and os.getpid() == self._owner:
        worker.close()
      self._free.put(None)

  def __getstate__(self) -> dict[str, Any]:
    return {"preparation": self._preparation, "size": self.size}

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.__init__(**state)

  def _reset(self) -> None:
    self._owner = os.getpid()
    self._free = queue.LifoQueue()
    for _ in range(self.size):
      self._free.put(None)


def _serve() -> None:
  """Answers requests until the owner closes the pipe."""
  # Ctrl-C reaches the whole group; the owner speaks of it, for all.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  requests = sys.stdin.buffer
  replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
  # What verifiers print must not mix with the replies.
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  _limit_memory()
  # Imported here, for the worker alone needs it.
  # pylint: disable-next=g-import-not-at-top
  from jaxrl_llm.rollout import verifier_calls

  while header := requests.read(_HEADER.size):
    payload = requests.read(_HEADER.unpack(header)[0])
    timeout, name, *arguments = pickle.loads(payload)
    # An owner that was killed cannot kill: the alarm ends an orphan.
    signal.alarm(math.ceil(timeout) + 2)
    try:
      reply = {"value": getattr(verifier_calls, name)(*arguments)}
    except Exception as error:  # pylint: disable=broad-exception-caught
      reply = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    signal.alarm(0)
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _limit_memory() -> None:
  """Bounds what a runaway formula can take, where the system allows it."""
  if sys.platform == "linux":
    import resource  # pylint: disable=g-import-not-at-top

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
  _serve()
