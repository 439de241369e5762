"""What the processes of one job do together: begin, agree and wait.

Many hosts run one program (`jax.distributed`); with one process, everything
here returns at once. All of them share a file system.
"""

from collections.abc import Iterable
import glob
import importlib.util
import os
import pathlib
import time

import jax
from jax.experimental import multihost_utils
import numpy as np

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
    if ":" not in coordinator or not 0 <= index < count:
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


def exchange(text: str) -> list[str]:
  """Returns what each process says, in their order; all must call."""
  if jax.process_count() == 1:
    return [text]
  content = np.frombuffer(text.encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(content.size))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: content.size] = content
  rows = np.asarray(multihost_utils.process_allgather(padded))
  return [
      row[:size].tobytes().decode()
      for row, size in zip(rows, sizes, strict=True)
  ]


def agree(text: str) -> str:
  """Returns what process 0 says; all must call."""
  return exchange(text)[0]


def wait_for(paths: Iterable[str | os.PathLike[str]]) -> None:
  """Waits until other processes have written these files.

  A process that ends early takes the others with it, so none waits in vain.
  """
  for path in map(pathlib.Path, paths):
    while jax.process_count() > 1 and not path.is_file():
      time.sleep(_PAUSE)
