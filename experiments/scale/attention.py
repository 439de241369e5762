"""What the compiler for TPUs makes of attention: pairs of blocks, or kernels.

Command: python -m experiments.scale.attention [--topologies=v5e:2x2,…]
  > experiments/scale/reports/attention.txt
Hardware: none of a TPU; libtpu (pip install "jaxrl_llm[tpu]"), 2 CPU cores, 4
  GiB, about half an hour.
Expect: a table per chip and shape. Nothing runs; no number is a measured time.

One layer's attention, forward and backward, in bfloat16, is compiled for one
chip. Columns:

  temporaries   MiB of HBM beside arguments and results, by the compiler's
                memory analysis.
  scores        MiB of score-shaped arrays (as many numbers as queries times
                keys of a pair, times all heads) that the loop writes to HBM in
                one call: those that the compiled text does not mark S(1), its
                mark for VMEM. Inside a kernel there are none.
  least ms      of the products, at the chip's published peak.
  moved         MiB that the kernels fetch and write, by their block specs; the
                compiler cannot look into a kernel. Of the pairs: not known.
  bundles       millions of instruction bundles, the compiler's own schedule: a
                core issues one per cycle unless it waits. Of each program that
                the compiler dumps (--xla_jf_dump_to): its bundles, times the
                steps of its window (iteration_bounds) or of the kernel's grid,
                times the turns of the loop that it is in. Of a chip with two
                cores, those of both. Other loops inside a program count once
                and one program that serves two instructions counts for one, so
                pairs have at least these. Of a kernel's conditional regions the
                largest counts at every step (also where packing leaves a pair
                unread, which kernels pass over), the others once per block of
                queries.
  share         bundles of that form, of those by pairs of 256.
"""

import argparse
import dataclasses
import math
import os
import pathlib
import re
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import attention
from jaxrl_llm.models import attention_tpu
from jaxrl_llm.models import sharding
from jaxrl_llm.slices import chips
from jaxrl_llm.slices import hlo
from jaxrl_llm.slices import products

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Shape:
  """Rows, tokens, query heads, key heads and width of a layer on a chip."""

  name: str
  rows: int
  tokens: int
  heads: int
  key_heads: int
  head_dim: int


QWEN = {"heads": 16, "key_heads": 4, "head_dim": 128}
# Shape and the sizes of blocks that are tried by pairs.
SHAPES = (
    (Shape("Qwen3-8B, tensor=2", 1, 4096, **QWEN), (256, 512, 1024)),
    (Shape("Qwen3-8B, tensor=2", 4, 1024, **QWEN), (256,)),
    (Shape("Qwen3-8B, tensor=2", 8, 512, **QWEN), (256,)),
    (Shape("Qwen3-8B, tensor=2", 16, 256, **QWEN), (256,)),
    (Shape("SmolLM2-135M", 4, 1024, 9, 3, 64), (256, 1024)),
    (Shape("SmolLM2-135M", 16, 256, 9, 3, 64), (256,)),
)


def layer(
    queries: types.Array,
    keys: types.Array,
    values: types.Array,
    segment_ids: types.Array,
    parent_ids: types.Array,
    given: types.Array,
) -> types.PyTree:
  """Attends and pulls back what the outputs are given; see attention.causal."""
  outputs, pull = jax.vjp(
      lambda *x: attention.causal(*x, segment_ids, parent_ids, jnp.bfloat16),
      queries, keys, values,
  )
  return outputs, pull(given)


def trace(shape: Shape, block: int | None) -> jax.stages.Traced:
  """Traces a layer by pairs of `block`, or by kernels where that is None."""
  spread = sharding.replicated(jax.sharding.get_mesh())
  made = lambda dtype, *axes: jax.ShapeDtypeStruct(
      (shape.rows, shape.tokens, *axes), dtype, sharding=spread
  )
  queries = made(jnp.float32, shape.heads, shape.head_dim)
  keys = made(jnp.float32, shape.key_heads, shape.head_dim)
  ids = made(jnp.int32)
  with (
      mock.patch.object(attention_tpu, "pays", return_value=block is None),
      mock.patch.object(attention, "BLOCK", block or attention.BLOCK),
  ):
    # A function of its own: what was traced is kept by function.
    return jax.jit(lambda *x: layer(*x)).trace(
        queries, keys, keys, ids, ids, queries
    )


def scores_in_hbm(shape: Shape, block: int, text: str) -> float:
  """Counts MiB of scores that a call by pairs writes outside of VMEM."""
  block = min(block, shape.tokens)
  numbers = shape.rows * shape.heads * block**2
  total = 0.0
  for times, instruction in hlo.runs(text, 1).values():
    result = re.split(r" (?:fusion|copy|broadcast|convert)\(", instruction)
    if len(result) < 2 or "scoped_memory_configs" not in instruction:
      continue  # It makes nothing in memory, or is part of a fusion.
    for dtype, sizes, layout in re.findall(
        r"(f32|bf16)\[([\d,]+)\](\{[^}]*\})", result[0]
    ):
      if math.prod(map(int, sizes.split(","))) != numbers:
        continue
      if "S(1)" not in layout:
        total += times * numbers * (4 if dtype == "f32" else 2)
  return total / _MIB


def of_kernel(shape: Shape, program: str) -> int:
  """Counts bundles of a kernel's call, from its dumped program."""
  blocks = -(-shape.tokens // attention_tpu.block_of(
      shape.tokens, shape.heads // shape.key_heads
  ))
  row_heads = shape.rows * shape.key_heads
  branches, joins = [], []
  for line in program.splitlines():
    address = re.match(r" *0x([0-9a-f]+) +(PF)?", line)
    if address:
      last = int(address[1], 16)
      joins += [last] if address[2] else []
      branches += [last] if "sbr.rel" in line else []
  regions = [  # The last branch closes the loop.
      range(branch, min(x for x in joins if x > branch))
      for branch in branches[:-1]
  ]
  largest = max(regions, key=len)
  ends = len(set().union(*regions) - set(largest))
  pairs = blocks * (blocks + 1) // 2
  return row_heads * (pairs * (last + 1 - ends) + blocks * ends)


def bundles(shape: Shape, text: str, dumped: pathlib.Path) -> float:
  """Counts bundles of one call, in millions."""
  runs = hlo.runs(text, 1)
  total = 0
  for path in dumped.glob("*-final_bundles.txt"):
    name = re.fullmatch(r"\d+-(.*)-\d+-final_bundles.txt", path.name)
    if not name or name[1] not in runs:
      continue  # The program around them, or a summary.
    times, instruction = runs[name[1]]
    program = path.read_text()
    if "tpu_custom_call" in instruction:
      total += times * of_kernel(shape, program)
      continue
    last = re.findall(r"^ *0x([0-9a-f]+)", program, re.MULTILINE)[-1]
    window = re.search(r'"iteration_bounds":\[([^\]]*)\]', instruction)
    if window:
      times *= math.prod(int(x) for x in re.findall(r"\d+", window[1]))
    total += (int(last, 16) + 1) * times
  return total / 1e6


def report(
    topology: str,
    shape: Shape,
    blocks: tuple[int, ...],
    dumps: pathlib.Path,
) -> None:
  """Compiles a shape in each form and prints the table.

  Args:
    topology: of the slice, as v5e:2x2.
    shape: of the layer.
    blocks: tokens of a block, each tried by pairs; kernels come last.
    dumps: folder that the compiler writes its programs to.
  """
  chip = chips.chip(topology)
  print(
      f"\n{topology.split(':')[0]}, {shape.name}: B={shape.rows}"
      f" T={shape.tokens} N={shape.heads} K={shape.key_heads}"
      f" H={shape.head_dim}\n{'':12}temporaries  scores  least ms  moved"
      "  bundles  share"
  )
  first = None
  for block in (*blocks, None):
    dumped = pathlib.Path(tempfile.mkdtemp(dir=dumps))
    traced = trace(shape, block)
    before = set(dumps.glob("*.txt"))
    made = traced.lower().compile()
    for path in set(dumps.glob("*.txt")) - before:
      path.rename(dumped / path.name)
    text = made.as_text()
    counted = bundles(shape, text, dumped)
    first = first or counted
    moved = sum(
        int(x) for x in re.findall(r'"bytes_accessed":"?(\d+)', text)
    )
    print(
        f"{f'pairs {block}' if block else 'kernels':12}"
        f"{made.memory_analysis().temp_size_in_bytes / _MIB:11.1f}"
        f"{scores_in_hbm(shape, block, text) if block else 0:8.0f}"
        f"{1e3 * products.flops(traced.jaxpr, 1) / chip.flops:10.2f}"
        f"{'-' if block else format(moved / _MIB, '.0f'):>7}"
        f"{counted:9.2f}{counted / first:7.2f}",
        flush=True,
    )


def main(dumps: pathlib.Path) -> None:
  """Prints what the tables hold, and a table per chip and shape."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--topologies", default="v5e:2x2,v5p:2x2x1,v6e:2x2")
  arguments = parser.parse_args()
  print(__doc__[__doc__.index("One layer") :].rstrip())
  for topology in arguments.topologies.split(","):
    devices = chips.devices(topology)
    with jax.set_mesh(sharding.make_mesh("data=1", devices)):
      for shape, blocks in SHAPES:
        report(topology, shape, blocks, dumps)


if __name__ == "__main__":
  with tempfile.TemporaryDirectory() as folder:
    # Read when libtpu is loaded.
    os.environ["LIBTPU_INIT_ARGS"] = (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        " --xla_jf_dump_llo_pass_label_regex=final_bundles"
    )
    main(pathlib.Path(folder))
