"""What the processes of one job do together: begin, agree and wait.

Many hosts run one program (`jax.distributed`); with one process, everything
here returns at once. All of them share a file system.
"""

from collections.abc import Callable, Iterable
import glob
import importlib.util
import os
import pathlib
import re
import time
from typing import TypeVar

import jax
from jax.experimental import multihost_utils
import numpy as np

Result = TypeVar("Result")

# Seconds between two looks at the file system.
_PAUSE = 0.2


def start(coordinator: str, count: int, index: int) -> None:
  """Joins the other processes, if there are any; before any computation.

  Args:
    coordinator: "host:port" of process 0. Empty asks the environment of SLURM,
      Open MPI or a Cloud TPU, and joins nobody where there is none.
    count: processes in all, read with a coordinator.
    index: of this one, likewise.

  Raises:
    ValueError: the numbers do not fit.
  """
  if coordinator:
    # What has no port, or none that there is, ends the library in a crash.
    match = re.fullmatch(r"(?:[^:]+|\[.+\]):([0-9]+)", coordinator)
    port = int(match[1]) if match else 0
    if not 0 < port < 2**16 or not 0 <= index < count:
      raise ValueError(
          "distributed: expected a coordinator as host:port and 0 <="
          f" process_index < process_count, found {coordinator!r}, {index} and"
          f" {count}; give all three, or none."
      )
    jax.distributed.initialize(coordinator, count, index)
  elif several_in(os.environ) or _on_cloud_tpu():
    jax.distributed.initialize()


def several_in(environment: os._Environ | dict[str, str]) -> bool:
  """Whether a launcher says that this is one of several processes."""
  counts = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
  named = environment.get("TPU_WORKER_HOSTNAMES", "")
  return "," in named or any(
      int(environment.get(name, "1")) > 1 for name in counts
  )


def _on_cloud_tpu() -> bool:
  """Whether this machine has chips of which others may have the rest."""
  chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
  platforms = os.environ.get("JAX_PLATFORMS", "tpu")
  found = importlib.util.find_spec("libtpu") is not None
  return found and bool(chips) and "tpu" in platforms


def share(count: int) -> range:
  """Returns which of some things fall to this process, side by side."""
  index, parts = jax.process_index(), jax.process_count()
  return range(count * index // parts, count * (index + 1) // parts)


def exchange_bytes(content: bytes) -> list[bytes]:
  """Returns what each process hands in, in their order; all must call."""
  if jax.process_count() == 1:
    return [content]
  own = np.frombuffer(content, np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(own.size))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: own.size] = own
  rows = np.asarray(multihost_utils.process_allgather(padded))
  return [
      row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)
  ]


def exchange(text: str) -> list[str]:
  """Returns what each process says, in their order; all must call."""
  return [said.decode() for said in exchange_bytes(text.encode())]


def agree(text: str) -> str:
  """Returns what process 0 says; all must call."""
  return exchange(text)[0]


def first_alone(action: Callable[[], object]) -> None:
  """Has process 0 do something before any process goes on; all must call.

  For a file that process 0 writes and the others read.
  """

  def act():
    if jax.process_index() == 0:
      action()

  together(act)


def together(action: Callable[[], Result]) -> Result:
  """Does each process's part of something; none goes on where one failed.

  Raises:
    ValueError: what the first of those says whose part was refused, in every
      process; with one process, whatever the action raises.
  """
  if jax.process_count() == 1:
    return action()
  try:
    result, problem = action(), ""
  except (ValueError, OSError) as error:
    result, problem = None, str(error)
  problems = [said for said in exchange(problem) if said]
  if problems:
    raise ValueError(problems[0])
  return result


def wait_for(paths: Iterable[str | os.PathLike[str]]) -> None:
  """Waits until other processes have written these files.

  A process that ends early takes the others with it, so none waits in vain.
  """
  for path in map(pathlib.Path, paths):
    while jax.process_count() > 1 and not path.is_file():
      time.sleep(_PAUSE)
