"""Named TPU slices, and the published peaks of their chips."""

from collections.abc import Sequence
import dataclasses
import math
import os
import re

import jax
from jax.experimental import topologies


@dataclasses.dataclass(frozen=True)
class Chip:
  """Published peaks of one chip.

  Attributes:
    kind: as jax names the device.
    flops: bfloat16 products, FLOP/s.
    memory: HBM, bytes.
    bandwidth: of HBM, bytes/s.
    links: what a chip can send to its neighbours over all of its links
      together, bytes/s.
    axes: of a slice's shape.
    most: chips of a slice.
  """

  kind: str
  flops: float
  memory: int
  bandwidth: float
  links: float
  axes: int
  most: int


_GIB = 2**30
# https://cloud.google.com/tpu/docs/v5e, v5p and v6e: half of the bidirectional
# inter-chip bandwidth is sent.
CHIPS = {
    "v5e": Chip("TPU v5 lite", 197e12, 16 * _GIB, 819e9, 200e9, 2, 256),
    "v5p": Chip("TPU v5", 459e12, 95 * _GIB, 2765e9, 600e9, 3, 6144),
    "v6e": Chip("TPU v6 lite", 918e12, 32 * _GIB, 1640e9, 400e9, 2, 256),
}


def chip(topology: str) -> Chip:
  """Returns the chip of a topology such as v5e:4x4.

  The compiler takes shapes that no slice has, as v5e:2x2x2.

  Raises:
    ValueError: it is none of CHIPS, or no shape of one follows.
  """
  name, _, shape = topology.partition(":")
  if name not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
    raise ValueError(
        "compile.topology: expected a chip and a shape, as v5e:4x4, with a"
        f" chip of {', '.join(CHIPS)}, found {topology!r}; correct it."
    )
  found, sizes = CHIPS[name], list(map(int, shape.split("x")))
  if len(sizes) != found.axes or math.prod(sizes) > found.most:
    raise ValueError(
        f"compile.topology: there is no slice {topology}: expected a shape of"
        f" {found.axes} axes and at most {found.most} chips for {name}, as"
        " v5e:4x4 or v5p:4x4x4; correct it."
    )
  return found


def devices(topology: str) -> Sequence[jax.Device]:
  """Describes the devices of a slice; none of them need be there.

  Raises:
    ValueError: there is no such slice.
    ImportError: the compiler for TPUs is not installed.
  """
  found = chip(topology)
  # Read when libtpu is loaded: it shall neither look for a machine with TPUs
  # nor want to be the only one that looks.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  try:
    made = topologies.get_topology_desc(
        platform="tpu", topology_name=topology
    ).devices
  except RuntimeError as error:
    if "not installed" in str(error):
      raise ImportError(
          "compile.topology: expected libtpu, the compiler for TPUs, found"
          ' none; install it with pip install "jaxrl_llm[tpu]", or pip install'
          " libtpu in the version that jax's own extra [tpu] names."
      ) from error
    raise ValueError(
        f"compile.topology: there is no slice {topology}"
        f" ({str(error).strip().splitlines()[0]}); choose a shape that the"
        " provider lists, as v5e:4x4 or v5p:4x4x4."
    ) from error
  if made[0].device_kind != found.kind:
    raise ValueError(
        f"compile.topology: expected devices of kind {found.kind!r} for"
        f" {topology}, found {made[0].device_kind!r}; correct CHIPS."
    )
  return made
