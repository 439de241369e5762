"""Leaves at the next update when the machine is about to be taken away.

Schedulers say so by SIGTERM: SLURM, Kubernetes, a Cloud TPU before its
maintenance. Between two updates everything is saved, then the process ends
with EXIT_CODE; outside of training there is nothing to save, and it ends at
once. Started again, the same command goes on to the same bits.

Many hosts must save the same update. There `jax.distributed` catches the
signal of any of them and lets all agree on one.
"""

from collections.abc import Iterator
import contextlib
import os
import signal
import sys

import jax
from jax.experimental import multihost_utils

# EX_TEMPFAIL of sysexits.h: what failed is to be tried again.
EXIT_CODE = 75

# Of this process, as signals are: whether one came, and whether to wait for
# the next update.
_STATE = {"asked": False, "training": False}


def listen() -> None:
  """Takes SIGTERM from now on; `jax.distributed` does so for many hosts."""
  if jax.process_count() == 1:
    signal.signal(signal.SIGTERM, _on_signal)


@contextlib.contextmanager
def during_training() -> Iterator[None]:
  """Lets a signal wait for whoever asks `due` and calls `leave`."""
  _STATE["training"] = True
  try:
    yield
  finally:
    _STATE["training"] = False


def due(update: int) -> bool:
  """Whether to save after this update and leave, the same on every host.

  Args:
    update: its number, which grows from call to call.
  """
  if jax.process_count() > 1:
    _STATE["asked"] |= multihost_utils.reached_preemption_sync_point(update)
  return asked()


def asked() -> bool:
  """Whether a signal came; on many hosts, whether `due` has found one."""
  return _STATE["asked"]


def leave(kept: str) -> None:
  """Ends the process with EXIT_CODE.

  Args:
    kept: what is saved, for the message.

  Raises:
    SystemExit: always.
  """
  print(_message(kept), file=sys.stderr)
  raise SystemExit(EXIT_CODE)


def _message(kept):
  return f"SIGTERM: {kept}; the same command goes on from there."


def _on_signal(number, frame) -> None:
  del number, frame
  _STATE["asked"] = True
  if not _STATE["training"]:
    # As SIGKILL would end it, which all that is written withstands: within a
    # callback of the collector an exception is dropped, and threads that
    # compile do not outlive an orderly end.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
      sys.stdout.flush()  # In the middle of a print it cannot be.
    os.write(2, f"{_message('what is on disk is whole')}\n".encode())
    os._exit(EXIT_CODE)
