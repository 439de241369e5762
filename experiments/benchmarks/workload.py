"""What the benchmarks time: a training step, attention alone, decoding.

Weights and tokens are random; ppo with ratios near 1 is the objective, and
every token but the first of a segment is trained, so the head scores them all.
"""

from collections.abc import Callable
import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.models import attention
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.rollout import engine as engine_lib
from jaxrl_llm.rollout import responses
from jaxrl_llm.rollout import sampler
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import step

SPEC = algorithms.build({"name": "ppo", "correction": "none"})
SETTINGS = settings_lib.TrainSettings(learning_rate=1e-6)


def seconds(function: Callable[[], Any]) -> float:
  """Times one call, until its results are there."""
  began = time.perf_counter()
  jax.block_until_ready(function())
  return time.perf_counter() - began


def median_seconds(function: Callable[[], Any], repeats: int) -> float:
  """Calls once to compile, then returns the median time of a call."""
  jax.block_until_ready(function())
  return statistics.median(seconds(function) for _ in range(repeats))


def make_batch(
    rows: int, tokens: int, segment: int, vocabulary: int
) -> types.Batch:
  """Draws random tokens [rows, tokens], packed segments of `segment` each."""
  draw = np.random.default_rng(0)
  shape = (rows, tokens)
  index = np.arange(tokens)
  over_rows = lambda values: jnp.broadcast_to(
      jnp.asarray(values, jnp.int32), shape
  )
  segments = over_rows(index // segment + 1)
  positions = over_rows(index % segment)
  per_row = -(-tokens // segment)
  sequences = segments - 1 + per_row * jnp.arange(rows)[:, None]
  ids = jnp.asarray(draw.integers(0, vocabulary, shape), jnp.int32)
  scores = draw.normal(size=rows * per_row).astype(np.float32)
  terms = types.Terms(
      mask=positions > 0,
      tokens=ids,
      segment_ids=segments,
      sequence_ids=sequences,
      response_positions=jnp.maximum(positions - 1, 0),
      advantages=jnp.asarray(scores)[sequences],
      proximal_logprobs=jnp.full(shape, -np.log(vocabulary), jnp.float32),
  )
  return types.Batch(
      tokens=ids,
      segment_ids=segments,
      parent_ids=segments,
      positions=positions,
      temperatures=jnp.ones(shape),
      terms=terms,
  )


@dataclasses.dataclass(frozen=True)
class Training:
  """A training step of one micro-batch, compiled for its shape.

  Attributes:
    inputs: batch, weights and statistics, as Steps.add takes them.
    start: compiled Steps.start.
    add: compiled Steps.add.
    update: Steps.update, which compiles when it is first called.
  """

  inputs: tuple[Any, ...]
  start: Any
  add: Any
  update: Callable[..., Any]

  @property
  def temporary_bytes(self) -> int:
    """Memory of forward and backward beside arguments and results."""
    return self.add.memory_analysis().temp_size_in_bytes


def start_state(policy: policy_lib.Policy) -> state_lib.TrainState:
  """Draws weights and makes an optimizer for them."""
  params = jax.jit(policy.init)(jax.random.key(0))
  optimizer = optimizer_lib.build(SETTINGS)
  state = state_lib.create(params, optimizer, "benchmark")
  return state_lib.place(state, policy, optimizer, _mesh())


def _mesh() -> jax.sharding.Mesh:
  return sharding_lib.make_mesh("data=1")


def training(
    policy: policy_lib.Policy,
    state: state_lib.TrainState,
    rows: int,
    tokens: int,
    segment: int | None = None,
) -> Training:
  """Compiles a step over rows [rows, tokens] of segments of `segment`."""
  steps = step.build(policy, SPEC, SETTINGS, _mesh())
  batch = make_batch(
      rows, tokens, segment or tokens, policy.config.vocab_size
  )
  weights = steps.denominators(batch.terms, True)
  inputs = (batch, weights, None)
  start = steps.start.lower(state.params, *inputs).compile()
  totals = jax.eval_shape(steps.start, state.params, *inputs)
  add = steps.add.lower(state.params, totals, *inputs).compile()
  return Training(inputs, start, add, steps.update)


def train(
    one: Training, state: state_lib.TrainState
) -> tuple[state_lib.TrainState, float, float]:
  """Makes an update; seconds of forward and backward, and of the rest.

  The given state is donated.
  """
  began = time.perf_counter()
  totals = one.start(state.params, *one.inputs)
  totals = jax.block_until_ready(one.add(state.params, totals, *one.inputs))
  halfway = time.perf_counter()
  *moved, outcome = jax.block_until_ready(
      one.update(state.params, state.opt_state, state.counters, totals)
  )
  ended = time.perf_counter()
  if outcome["skipped"]:
    raise FloatingPointError(
        "training step: expected finite gradients of random weights, found"
        " others; the times mean nothing."
    )
  params, opt_state, counters = moved
  state = dataclasses.replace(
      state, params=params, opt_state=opt_state, counters=counters
  )
  return state, halfway - began, ended - halfway


def attention_inputs(
    config: policy_lib.ModelConfig, rows: int, tokens: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Random queries, keys and values of one layer, float32."""
  keys = jax.random.split(jax.random.key(0), 3)
  heads = (config.heads, config.kv_heads, config.kv_heads)
  return tuple(
      jax.random.normal(key, (rows, tokens, count, config.head_dim))
      for key, count in zip(keys, heads)
  )


def attend(dtype: str) -> Callable[..., jax.Array]:
  """This package's attention over rows of one segment each."""

  def run(queries, keys, values):
    segments = jnp.ones(queries.shape[:2], jnp.int32)
    return attention.causal(
        queries, keys, values, segments, segments, jnp.dtype(dtype)
    )

  return run


def with_gradient(function: Callable[..., jax.Array]) -> Callable[..., Any]:
  """Jits a function of arrays, and what its own values pull back to."""

  def run(*inputs):
    outputs, pull = jax.vjp(function, *inputs)
    return outputs, pull(outputs)

  return jax.jit(run)


@dataclasses.dataclass(frozen=True)
class Decoding:
  """Shapes of a measurement of decoding.

  Attributes:
    slots: responses decoded at once, all to one prompt.
    capacity: tokens that a slot has room for.
    steps: decoding steps that are timed.
  """

  slots: int
  capacity: int
  steps: int


def decode_seconds(
    policy: policy_lib.Policy,
    params: types.PyTree,
    shapes: Decoding,
    cached: int,
    repeats: int,
) -> float:
  """Seconds of a decoding step that ends with `cached` tokens in each slot.

  The engine answers one prompt twice, with one token and with `steps` more
  per response; the difference is that of the steps, the reading of the prompt
  and the host's work on a response fall out. Tokens are drawn as in training,
  and no token stops a response.
  """
  drawn = shapes.steps + 1
  rng = np.random.default_rng(0)
  request = responses.Request(
      tokens=rng.integers(
          0, policy.config.vocab_size, cached - drawn, dtype=np.int32
      ),
      words=sampler.request_words(
          "rollout", 0, 0, [0] * shapes.slots, range(shapes.slots)
      ),
      temperatures=np.ones(shapes.slots, np.float32),
  )
  buckets = sorted({cached - drawn, shapes.capacity - drawn})

  def engine(window):
    return engine_lib.Engine(
        policy, params, (),
        sampler.SamplingSettings(max_new_tokens=drawn),
        engine_lib.Shapes(shapes.slots, 1, tuple(buckets), shapes.steps),
        window,
    )

  short, long = engine(1), engine(drawn)
  for one in (short, long):
    list(one.run([request]))  # Compiles.
  times = [
      [seconds(lambda: list(one.run([request]))) for one in (short, long)]
      for _ in range(repeats)
  ]
  return statistics.median(b - a for a, b in times) / shapes.steps
