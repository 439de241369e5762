"""Compiles programs for a slice, and reads what they need of each chip."""

import dataclasses
import re
import time

import jax

from jaxrl_llm import types
from jaxrl_llm.slices import chips
from jaxrl_llm.slices import hlo
from jaxrl_llm.slices import products
from jaxrl_llm.slices import programs

# Two wordings of the compiler: used, and available.
_SIZE = r"([\d.]+)([KMGT]?)"
_USED = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Needs:
  """What one program needs of each chip; bytes, FLOPs and seconds.

  Attributes:
    name: of the program.
    arguments: bytes of what it reads, donated arrays included.
    temporaries: bytes that it holds beside arguments and results.
    results: bytes of what it makes in no donated place.
    code: bytes of the program itself.
    beside: bytes that lie there while it runs and that it does not read.
    total: bytes of all of these; the compiler's figure where it gave up.
    flops: of matrix products.
    collectives: what it exchanges.
    read: bytes that it reads of its arguments and writes of its results.
    seconds: that compiling took.
    limit: bytes that the compiler allows a program, where it gave up.
  """

  name: str
  arguments: int
  temporaries: int
  results: int
  code: int
  beside: int
  total: int
  flops: float
  collectives: tuple[hlo.Collective, ...] = ()
  read: int = 0
  seconds: float = 0.0
  limit: int = 0

  @property
  def sent(self) -> dict[str, float]:
    """Bytes that a chip sends in one call, by kind."""
    return hlo.sent_by_kind(self.collectives)

  def fits(self, chip: chips.Chip) -> bool:
    """Whether a chip's memory holds all of it."""
    return not self.limit and self.total <= chip.memory

  def times(self, chip: chips.Chip) -> tuple[float, float, float]:
    """Least seconds for products, for memory and for links, at the peaks."""
    return (
        self.flops / chip.flops,
        self.read / chip.bandwidth,
        sum(self.sent.values()) / chip.links,
    )


def exhausted(message: str) -> tuple[int, int] | None:
  """Reads (bytes needed, bytes there) where a program does not fit."""
  for wording in _USED:
    found = wording.search(message)
    if "RESOURCE_EXHAUSTED" in message and found:
      return tuple(
          int(float(found[n]) * _UNITS[found[n + 1]]) for n in (1, 3)
      )
  return None


class Compiler:
  """Compiles programs for the devices of a mesh, each once."""

  def __init__(self, mesh: jax.sharding.Mesh):
    self._mesh = mesh
    self._made: dict[str, jax.stages.Compiled] = {}

  def results_of(self, program: programs.Program) -> types.PyTree:
    """Returns what a program gives, as shapes with places."""
    made = self._compile(program)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
        ),
        made.out_info,
        made.output_shardings,
    )

  def needs(self, program: programs.Program) -> Needs:
    """Compiles a program and measures it; one that does not fit says so."""
    start = time.monotonic()
    with jax.set_mesh(self._mesh):
      traced = program.trace()
    flops = products.flops(traced.jaxpr, program.turns) / self._mesh.size
    try:
      made = self._compile(program)
    except jax.errors.JaxRuntimeError as error:
      sizes = exhausted(str(error))
      if sizes is None:
        raise
      size, limit = sizes
      return Needs(
          program.name, 0, 0, 0, 0, program.beside, size + program.beside,
          flops, seconds=time.monotonic() - start, limit=limit,
      )
    memory = made.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    parts = (
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        results,
        memory.generated_code_size_in_bytes,
        program.beside,
    )
    once = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return Needs(
        program.name,
        *parts,
        total=sum(parts),
        flops=flops,
        collectives=tuple(hlo.collectives(made.as_text(), program.turns)),
        read=max(once, program.per_token * program.turns),
        seconds=time.monotonic() - start,
    )

  def _compile(self, program: programs.Program) -> jax.stages.Compiled:
    if program.name not in self._made:
      with jax.set_mesh(self._mesh):
        self._made[program.name] = program.trace().lower().compile()
    return self._made[program.name]
