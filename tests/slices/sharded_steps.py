"""Checks on eight devices; sharding_test.py runs it in its own process.

What the compiled training and sampling exchange is what the mesh implies.
Sizes are distinct, so that a shape tells which array it is of. With the name
of a slice of eight chips, as v5e:2x4, it compiles for that, which is not
there.
"""

import math
import sys

import abstract
import jax

from jaxrl_llm.losses import algorithms
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import presets
from jaxrl_llm.models import sharding
from jaxrl_llm.rollout import engine
from jaxrl_llm.rollout import sampler
from jaxrl_llm.slices import chips
from jaxrl_llm.slices import compiling
from jaxrl_llm.slices import programs
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.training import settings as settings_lib

TOPOLOGY = "".join(sys.argv[1:])
LAYERS, TOKENS = 3, 1088
# Tiles of a chip have 128 columns.
VOCABULARY, WIDTH, MLP, HEAD = (
    size * (32 if TOPOLOGY else 1) for size in (544, 48, 80, 4)
)
CONFIG = presets.preset("tiny").replace(
    layers=LAYERS, vocab_size=VOCABULARY, width=WIDTH, mlp_width=MLP,
    head_dim=HEAD,
)
POLICY = policy_lib.Policy(CONFIG, "bfloat16", "layers")


def add(mesh):
  spec = algorithms.build({"name": "ctpo"})
  settings = settings_lib.TrainSettings(
      rows_per_microbatch=8, tokens_per_row=TOKENS
  )
  trainer = abstract.trainer(POLICY, spec, settings, mesh)
  return next(programs.training(trainer))


def critic_programs(mesh, compiler, kind):
  """Returns all that training with a critic runs, measured, by name."""
  spec = algorithms.build({"name": "ppo", "advantage": "gae"})
  settings = settings_lib.TrainSettings(
      rows_per_microbatch=8, tokens_per_row=64
  )
  critic = critic_lib.build(
      POLICY, critic_lib.CriticSettings(kind), settings, spec, mesh
  )
  trainer = abstract.trainer(POLICY, spec, settings, mesh, critic)
  return {
      program.name: compiler.needs(program)
      for program in programs.training(trainer)
      if program.name in programs.CRITIC
  }


def check_critic(mesh):
  """A critic's programs compile, and what lies beside them is counted."""
  parameters = sum(
      math.prod(leaf.shape) for leaf in jax.tree.leaves(POLICY.shapes)
  )
  for kind in critic_lib.KINDS:
    found = critic_programs(mesh, compiling.Compiler(mesh), kind)
    assert tuple(found) == programs.CRITIC
    values, add, update = found.values()
    # A head learns from hidden states: no product is differentiated.
    passes = add.flops / values.flops
    assert passes > 2.5 if kind == "network" else passes == 1, (kind, passes)
    assert update.flops == 0, kind
    # Of 4 bytes on 8 devices: the policy's weights and two moments, and with
    # a network as much again for the critic. Norms are whole on each device.
    network = 4 * parameters / 8
    wanted = {"network": (5, 5, 3), "head": (2, 2, 3)}[kind]
    for needs, copies in zip(found.values(), wanted):
      assert network * copies <= needs.beside < 1.05 * network * copies, (
          kind, needs.name, needs.beside / network
      )


def decode(mesh, compiler, spread):
  job = programs.Sampling(
      policy=POLICY,
      settings=sampler.SamplingSettings(),
      shapes=engine.Shapes(8, 8, (64,), 4, spread),
      stop_ids=(1,),
      mesh=mesh,
  )
  return list(programs.sampling(job, compiler.results_of))[-1]


def whole(shape, *sizes):
  """True where an array has axes of these sizes, whole or halved."""
  dims = list(shape[1])
  for size in sizes:
    match = next((d for d in (size, size // 2) if d in dims), None)
    if match is None:
      return False
    dims.remove(match)
  return True


def check_training(found):
  """One layer's weight at a time, no logits, the head's gradient once."""
  for item in found.collectives:
    for shape in item.shapes:
      dims = shape[1]
      assert not whole(shape, TOKENS, VOCABULARY), item
      assert not whole(shape, TOKENS - 1, VOCABULARY), item
      if dims and dims[0] == LAYERS and len(dims) > 2:
        raise AssertionError(f"the weights of all layers at once: {item}")
      if whole(shape, VOCABULARY, WIDTH):
        assert item.times == 1 and item.kind != "all-reduce", item
  gathered = [
      item
      for item in found.collectives
      if item.kind == "all-gather"
      and any(whole(shape, WIDTH, MLP) for shape in item.shapes)
  ]
  if TOPOLOGY:
    return  # There, gathers are cut into steps beside the products.
  # Gate, up and down: forward, and again (with the product for the inputs)
  # backward, where two uses of one weight may share a gather.
  assert 6 <= sum(item.times for item in gathered) / LAYERS <= 9, gathered
  assert all(item.times == LAYERS for item in gathered), gathered


def check_decoding(found, spread):
  """Neither head nor embedding moves over tensor, only the logits do.

  Other weights are gathered over fsdp where they are spread, and only there.
  """
  for item in found.collectives:
    for shape in item.shapes:
      assert (VOCABULARY, WIDTH) != shape[1], item
  moved = any(
      whole(shape, WIDTH, MLP)
      for item in found.collectives
      for shape in item.shapes
  )
  assert moved == spread, found.collectives
  assert any(
      item.kind in ("all-gather", "all-to-all") and VOCABULARY in shape[1]
      for item in found.collectives
      for shape in item.shapes
  ), found.collectives


def main() -> None:
  devices = chips.devices(TOPOLOGY) if TOPOLOGY else jax.devices()
  assert len(devices) == 8
  mesh = sharding.make_mesh("fsdp=4,tensor=2", devices)
  check_training(compiling.Compiler(mesh).needs(add(mesh)))
  check_critic(mesh)
  for spread in (False, True):
    compiler = compiling.Compiler(mesh)
    found = compiler.needs(decode(mesh, compiler, spread))
    check_decoding(found, spread)


if __name__ == "__main__":
  main()
