"""The programs of a job, traced for the devices of a mesh.

They are the functions that training and sampling call, on shapes in place of
arrays: no weight is ever in memory.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.rollout import engine as engine_lib
from jaxrl_llm.rollout import sampler as sampler_lib
from jaxrl_llm.rollout import slots as slots_lib
from jaxrl_llm.slices import inputs
from jaxrl_llm.training import trainer as trainer_lib

PyTree = types.PyTree
CRITIC = ("critic_values", "critic_add", "critic_update")
TRAINING = ("add", "update", *CRITIC)
SAMPLING = ("weights", "prefill", "fill", "decode")
NAMES = (*TRAINING, *SAMPLING)


@dataclasses.dataclass(frozen=True)
class Program:
  """One jitted function, to be compiled for a mesh.

  Attributes:
    name: one of NAMES.
    trace: returns jax.stages.Traced.
    turns: of loops that the program itself ends, at most.
    beside: bytes per device that lie there while it runs and that it does not
      read.
    per_token: what is read for each of `turns` tokens, bytes per device; 0
      where what lies in memory is read once.
  """

  name: str
  trace: Callable[[], jax.stages.Traced]
  turns: int
  beside: int = 0
  per_token: int = 0


def training(trainer: trainer_lib.Trainer) -> Iterator[Program]:
  """Yields what an update runs: `add` per micro-batch, `update` once.

  Of an objective with a critic, also what its values and its own updates run.
  """
  given = inputs.training(trainer)
  critic = inputs.critic(trainer, given) if trainer.critic else None
  with jax.set_mesh(trainer.mesh):
    scored = trainer.shape.tokens - 1  # The first token of a row has no score.
    chunk = policy_lib.chunk_tokens(trainer.shape.rows, scored)
  size = inputs.bytes_per_device
  resident = size((given.params, given.opt_state))
  if trainer.needs.reference:
    resident += size(inputs.reference(trainer))
  if critic:
    resident += size((critic.state.params, critic.state.opt_state))
  yield Program(
      "add",
      functools.partial(
          trainer.steps.add.trace,
          given.params, given.totals, given.batch, given.weights, given.sums,
      ),
      -(-scored // chunk),
      resident - size(given.params),
  )
  yield Program(
      "update",
      functools.partial(
          trainer.steps.apply.trace,
          given.trained, given.opt_state, given.counters, given.totals,
      ),
      1,
      resident - size((given.trained, given.opt_state)),
  )
  if critic:
    yield from _critic(trainer.critic.steps, given.params, critic, resident)


def _critic(steps, policy_params, given, resident) -> Iterator[Program]:
  """Yields the programs of a critic.

  Args:
    steps: critic.Steps.
    policy_params: as shapes with places.
    given: inputs.Critic.
    resident: bytes per device of parameters and optimizers, all of them.
  """
  params, opt_state = given.state.params, given.state.opt_state
  # A critic with a network of its own does not read the policy's.
  own = "trunk" in params
  read = params if own else (params, policy_params)
  size = inputs.bytes_per_device
  yield Program(
      "critic_values",
      functools.partial(
          steps.values.trace, params, policy_params, given.batch
      ),
      1,
      resident - size(read),
  )
  yield Program(
      "critic_add",
      functools.partial(
          steps.add.trace,
          params, given.totals, policy_params, given.batch, given.weights,
      ),
      1,
      resident - size(read),
  )
  yield Program(
      "critic_update",
      functools.partial(
          steps.update.trace,
          params, opt_state, given.state.counters, given.totals,
      ),
      1,
      resident - size((params, opt_state)),
  )


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How responses are sampled.

  Attributes:
    policy: the network.
    settings: of the sampler.
    shapes: of the engine.
    stop_ids: that end a response.
    mesh: devices.
  """

  policy: policy_lib.Policy
  settings: sampler_lib.SamplingSettings
  shapes: engine_lib.Shapes
  stop_ids: tuple[int, ...]
  mesh: jax.sharding.Mesh

  @property
  def capacity(self) -> int:
    """Most tokens that a slot comes to hold."""
    longest = self.shapes.prompt_buckets[-1] + self.settings.max_new_tokens
    return engine_lib.capacities(longest + self.shapes.steps_per_call)[-1]


def sampling(
    job: Sampling, results_of: Callable[[Program], PyTree]
) -> Iterator[Program]:
  """Yields what sampling runs, each after those that place its inputs.

  Args:
    job: see Sampling.
    results_of: compiles a program, once, and returns what it gives as shapes
      with places.
  """
  everywhere = sharding_lib.replicated(job.mesh)
  policy = job.policy
  shapes = job.shapes
  params = inputs.parameters(policy, job.mesh)
  made = Program(
      "weights",
      functools.partial(
          engine_lib.serving_copy.trace, policy, params, shapes.spread_weights
      ),
      1,
  )
  yield made
  weights = results_of(made)
  prompts = inputs.placed(
      (
          jnp.zeros((shapes.prefill_rows, shapes.prompt_buckets[-1]), int),
          jnp.zeros(shapes.prefill_rows, int),
      ),
      everywhere,
  )
  prefill = Program(
      "prefill",
      functools.partial(slots_lib.prefill.trace, policy, weights, *prompts),
      1,
  )
  yield prefill
  yield from _slots(job, weights, results_of(prefill), results_of)


def _slots(job, weights, prompts, results_of):
  """Yields the programs that fill slots and decode."""
  arguments = (job.policy, weights, job.shapes.slots, job.capacity)
  empty = Program(
      "empty", functools.partial(slots_lib.empty.trace, *arguments), 1
  )
  slots = results_of(empty)
  static = slots_lib.Static(
      policy=job.policy,
      truncation=job.settings.truncation,
      topk=job.settings.record_topk,
      stop_ids=job.stop_ids,
      steps=job.shapes.steps_per_call,
  )
  count = job.shapes.slots
  starts = slots_lib.Starts(
      *(jnp.zeros(count, jnp.int32) for _ in range(4)),
      words=jnp.zeros((count, 7), jnp.uint32),
      temperatures=jnp.zeros(count),
  )
  everywhere = sharding_lib.replicated(job.mesh)
  yield Program(
      "fill",
      functools.partial(
          slots_lib.fill.trace,
          static, slots, prompts, inputs.placed(starts, everywhere),
      ),
      count,
      inputs.bytes_per_device(weights),
  )
  yield Program(
      "decode",
      functools.partial(slots_lib.decode.trace, static, weights, slots),
      job.shapes.steps_per_call,
      per_token=inputs.bytes_per_device((weights, slots)),
  )
