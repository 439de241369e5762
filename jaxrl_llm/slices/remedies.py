"""What would make a job fit, by how its memory grows; compile it to be sure.

State (parameters and, where they are trained, gradients and both moments)
divides over fsdp × tensor, or over tensor alone where sampling holds weights
whole over fsdp; the rest of a program's memory grows with what one chip works
on: its rows of a micro-batch, or its slots.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import math

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib


@dataclasses.dataclass(frozen=True)
class Situation:
  """A program that does not fit.

  Attributes:
    config: of the network.
    mesh: sizes by axis.
    state: bytes of one copy of the state.
    axes: of the mesh, that the state is spread over.
    rows: of a micro-batch, or slots.
    rows_key: of the configuration, which gives the rows.
    total: bytes per chip that are needed.
    memory: bytes per chip that there are.
  """

  config: policy_lib.ModelConfig
  mesh: Mapping[str, int]
  state: int
  axes: tuple[str, ...]
  rows: int
  rows_key: str
  total: float
  memory: float

  def estimate(self, mesh: Mapping[str, int], rows: int) -> float:
    """Bytes per chip with another mesh and other rows."""

    def held(sizes):
      return self.state / math.prod(sizes[axis] for axis in self.axes)

    def worked_on(sizes, count):
      return count / math.prod(sizes.values())

    rest = max(0.0, self.total - held(self.mesh))
    grown = worked_on(mesh, rows) / worked_on(self.mesh, self.rows)
    return held(mesh) + rest * grown


def suggest(found: Situation) -> list[str]:
  """Returns up to three changes that should fit, the smallest first."""
  changes = _spread(found)
  for mesh, rows in _changes(found):
    if found.estimate(mesh, rows) <= found.memory:
      changes.append(_say(found, mesh, rows))
  if changes:
    return changes[:3]
  chips = math.prod(found.mesh.values())
  least = found.state / found.memory
  wanted = chips
  while wanted < 2 * least or wanted <= chips:
    wanted *= 2
  return [
      f"no mesh of {chips} chips: the state alone takes"
      f" {least:.1f} chips' memory; take a slice of {wanted} or more"
  ]


def _spread(found: Situation) -> list[str]:
  """Spreads a state over fsdp that is whole there, if it then fits."""
  if "fsdp" in found.axes or found.mesh["fsdp"] == 1:
    return []
  whole = found.state / found.mesh["tensor"]
  about = found.total - whole * (1 - 1 / found.mesh["fsdp"])
  if about > found.memory:
    return []
  return [
      "--config.generation.spread_weights=True"
      f" (about {about / 2**30:.1f} GiB)"
  ]


def _changes(
    found: Situation,
) -> Iterator[tuple[Mapping[str, int], int]]:
  """Yields meshes of as many chips with rows, the least change first."""
  chips = math.prod(found.mesh.values())
  for rows in _fewer(found.rows, found.mesh):
    yield found.mesh, rows
  for tensor in _divisors(chips):
    for data in _divisors(chips // tensor):
      mesh = {"data": data, "fsdp": chips // tensor // data, "tensor": tensor}
      if mesh != dict(found.mesh) and _divides(found.config, mesh):
        parts = mesh["data"] * mesh["fsdp"]
        yield mesh, max(parts, found.rows // parts * parts)
        yield mesh, parts


def _fewer(rows: int, mesh: Mapping[str, int]) -> Iterator[int]:
  """Yields smaller multiples of what the rows are spread over."""
  parts = mesh["data"] * mesh["fsdp"]
  while rows > parts:
    rows = max(parts, rows // 2 // parts * parts)
    yield rows


def _divisors(number: int) -> list[int]:
  return [n for n in range(1, number + 1) if number % n == 0]


def _divides(
    config: policy_lib.ModelConfig, mesh: Mapping[str, int]
) -> bool:
  """Whether every parameter divides over a mesh."""
  sizes = {
      "vocab": config.vocab_size,
      "embed": config.width,
      "heads": config.heads,
      "kv_heads": config.kv_heads,
      "mlp": config.mlp_width,
  }
  return not any(
      size % mesh[sharding_lib.RULES[name]] for name, size in sizes.items()
  )


def _say(found: Situation, mesh: Mapping[str, int], rows: int) -> str:
  """Words a change as keys."""
  said = []
  if mesh != found.mesh:
    axes = ",".join(f"{axis}={size}" for axis, size in mesh.items())
    said.append(f"--config.mesh={axes}")
  if rows != found.rows:
    said.append(f"--config.{found.rows_key}={rows}")
  about = found.estimate(mesh, rows) / 2**30
  return f"{' '.join(said)} (about {about:.1f} GiB)"
