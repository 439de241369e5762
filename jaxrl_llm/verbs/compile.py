"""Compiles a job for a TPU slice that is not there, and says what it needs.

Compiles what training and sampling run for the slice compile.topology and the
mesh of the configuration, on any machine, without weights, and prints per chip
the memory, the FLOPs, what is sent between chips, and the least time at the
chip's published peaks. Ends with 1 where something does not fit, and says what
would. Compiling one program takes minutes and gigabytes. Writes nothing.
"""

from collections.abc import Iterator
import math
import os
import pathlib

# Compiling for TPUs needs none: jax must not look for them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import ml_collections

from jaxrl_llm import types
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.slices import chips
from jaxrl_llm.slices import compiling
from jaxrl_llm.slices import programs
from jaxrl_llm.slices import remedies
from jaxrl_llm.slices import report
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.training import step
from jaxrl_llm.training import trainer as trainer_lib
from jaxrl_llm.verbs import critics
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import settings

SECTIONS = (
    "mesh", "model", "sampling", "generation", "objective", "critic",
    "curation", "train", "compile",
)
SHORT_FLAGS = {"topology": "compile.topology"}
# Exchanges that are listed of each program.
_LARGEST = 6


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> int:
  """Compiles and reports; returns the exit code."""
  del workdir  # Nothing is written.
  chosen = _programs(config)
  policy = network(config)
  topology = config.compile.topology
  devices = chips.devices(topology)
  mesh = sharding.make_mesh(config.mesh, devices)
  if mesh.size != len(devices):
    raise ValueError(
        f"mesh: expected as many devices as {topology} has, {len(devices)},"
        f" found {mesh.size}; change an axis."
    )
  parameters = _count(policy.without_adapters().shapes)
  print(report.heading(topology, len(devices)))
  axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
  print(f"mesh: {axes}; model: {report.parameters(parameters)}")
  compiler = compiling.Compiler(mesh)
  found = []
  for program in _jobs(config, policy, mesh, compiler, chosen):
    found.append(compiler.needs(program))
    print(f"{program.name}: compiled in {found[-1].seconds:.0f} s", flush=True)
  chip = chips.chip(topology)
  for table in (report.memory(found, chip), report.work(found, chip)):
    print("", *table, sep="\n")
  print("", "most is sent by", *report.largest(found, _LARGEST), sep="\n")
  print("", *report.legend(found), sep="\n")
  print("", *_rates(config, found, chip), sep="\n")
  misfits = [needs for needs in found if not needs.fits(chip)]
  for needs in misfits:
    print(_remedy(config, policy, mesh, chip, needs))
  return 1 if misfits else 0


def network(config: ml_collections.ConfigDict) -> policy_lib.Policy:
  """Returns the network of the configuration, without weights."""
  chosen = settings.build(policy_lib.ModelSettings, "model", config)
  if chosen.path:
    raise ValueError(
        "model.path: expected it empty, since compile reads no weights, found"
        f" {chosen.path!r}; name the size by model.preset."
    )
  return policy_lib.network(chosen.path, chosen)


def trainer(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
) -> trainer_lib.Trainer:
  """Returns the trainer of the configuration, without parameters."""
  spec, training = parts.spec(config), parts.train_settings(config)
  sharding.check_rows(
      "train.rows_per_microbatch", training.rows_per_microbatch, mesh
  )
  return trainer_lib.Trainer(
      policy=policy,
      spec=spec,
      settings=training,
      steps=step.build(policy, spec, training, mesh),
      mesh=mesh,
      seed=config.seed,
      controls={},
      reference_params=None,
      curation=parts.curation(config),
      critic=critics.build(config, policy, mesh),
  )


def _count(tree: types.PyTree) -> int:
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _state(
    policy: policy_lib.Policy,
    trains: bool,
    critic: critic_lib.Critic | None,
) -> int:
  """Bytes of what lies on all chips together, once."""
  if not trains:
    width = jnp.dtype(policy.compute_dtype).itemsize
    return width * _count(policy.without_adapters().shapes)
  # Beside what is trained, float32: its gradients and two moments.
  more = 3 * 4 * _count(policy_lib.trained(policy.shapes))
  held = sum(
      math.prod(leaf.shape) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(policy.shapes)
  )
  return held + more + (4 * 4 * _count(critic.shapes) if critic else 0)


def _programs(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns the names of compile.programs.

  Raises:
    ValueError: one is none, or is of a critic that the objective lacks.
  """
  critic = objective.requirements(parts.spec(config)).critic
  known = [
      name for name in programs.NAMES if critic or name not in programs.CRITIC
  ]
  if not config.compile.programs:
    return tuple(known)
  names = tuple(config.compile.programs.split(","))
  unknown = set(names) - set(known)
  if unknown:
    raise ValueError(
        f"compile.programs: expected some of {','.join(known)}, which"
        f" {config.objective.name} runs, found {min(unknown)!r}; correct it."
    )
  return names


def _jobs(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
    compiler: compiling.Compiler,
    chosen: tuple[str, ...],
) -> Iterator[programs.Program]:
  """Yields the programs that were asked for."""
  made = []
  if set(chosen) & set(programs.TRAINING):
    made.append(programs.training(trainer(config, policy, mesh)))
  if set(chosen) & set(programs.SAMPLING):
    generation = parts.generation_settings(config)
    sharding.check_rows("generation.slots", generation.slots, mesh)
    job = programs.Sampling(
        policy=policy,
        settings=parts.sampling_settings(config),
        shapes=generation.shapes,
        stop_ids=policy.config.eos_ids,
        mesh=mesh,
    )
    made.append(programs.sampling(job, compiler.results_of))
  for members in made:
    yield from (program for program in members if program.name in chosen)


def _rates(
    config: ml_collections.ConfigDict,
    found: list[compiling.Needs],
    chip: chips.Chip,
) -> Iterator[str]:
  """Yields tokens per second at the peaks, for what is called per token."""
  yield (
      "At the peaks, so an upper bound: products at full speed, what lies in"
      " memory read once, links all in use."
  )
  tokens = {
      "add": config.train.rows_per_microbatch * config.train.tokens_per_row,
      "decode": config.generation.slots * config.generation.steps_per_call,
  }
  for needs in found:
    if needs.name in tokens and not needs.limit:
      most, least = (
          tokens[needs.name] / seconds
          for seconds in report.least_seconds(needs, chip)
      )
      yield (
          f"{needs.name}: {most:,.0f} tokens/s if compute, memory and links"
          f" overlap, {least:,.0f} if they wait for each other"
      )


def _remedy(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
    chip: chips.Chip,
    needs: compiling.Needs,
) -> str:
  """Words what would make a program fit."""
  trains = needs.name in programs.TRAINING
  spread = trains or config.generation.spread_weights
  critic = critics.build(config, policy, mesh) if trains else None
  rows, key = (
      (config.train.rows_per_microbatch, "train.rows_per_microbatch")
      if trains
      else (config.generation.slots, "generation.slots")
  )
  changes = remedies.suggest(
      remedies.Situation(
          config=policy.config,
          mesh=dict(mesh.shape),
          state=_state(policy, trains, critic),
          axes=("fsdp", "tensor") if spread else ("tensor",),
          rows=rows,
          rows_key=key,
          total=needs.total,
          memory=needs.limit or chip.memory,
      )
  )
  if trains and policy.remat != "layers":
    changes = ["--config.model.remat=layers", *changes]
  return (
      f"{needs.name} does not fit: it needs {needs.total / 2**30:.1f} GiB of"
      f" {(needs.limit or chip.memory) / 2**30:.2f}. What should fit, by how"
      f" memory grows: {'; or '.join(changes)}."
  )
