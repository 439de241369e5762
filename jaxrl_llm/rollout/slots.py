"""The slots on the device: compiled functions that fill them and decode.

Weights are passed in as the policy's serving copy. The state is donated from
call to call, so there is one cache.
"""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.rollout import sampler

Array = types.Array
PyTree = types.PyTree

_TRACES = collections.Counter()


def compilations() -> int:
  """Counts the functions that this module has compiled in this process."""
  return _TRACES.total()


@dataclasses.dataclass(frozen=True)
class Static:
  """What is fixed when a function is compiled."""

  policy: policy_lib.Policy
  truncation: sampler.Truncation
  topk: int
  stop_ids: tuple[int, ...]
  steps: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """The slots on the device.

  Attributes:
    cache: of the policy.
    tokens: int32 [S], drawn last and not yet in the cache.
    lengths: int32 [S], prompt tokens.
    counts: int32 [S], response tokens drawn, also before this state was made.
    limits: int32 [S], the count at which a response is cut.
    keys: uint32 [S, 2] of the responses.
    temperatures: float32 [S].
    active: bool [S], decoding.
  """

  cache: PyTree
  tokens: Array
  lengths: Array
  counts: Array
  limits: Array
  keys: Array
  temperatures: Array
  active: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prompts:
  """Prompts that were read, each with what was drawn of its response before.

  Attributes:
    cache: of the policy, B rows.
    logits: float32 [B, V] of the token after each.
    lengths: int32 [B], in tokens.
  """

  cache: PyTree
  logits: Array
  lengths: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Starts:
  """Responses that begin or go on.

  Attributes:
    slots: int32 [S], their slots, distinct; a slot of S or beyond is skipped.
    rows: int32 [S], the row of Prompts that each answers.
    counts: int32 [S], the last tokens of the row that are its response's.
    limits: int32 [S], response tokens at which it is cut, above `counts`.
    words: uint32 [S, 7] of `sampler.request_words`.
    temperatures: float32 [S].
  """

  slots: Array
  rows: Array
  counts: Array
  limits: Array
  words: Array
  temperatures: Array


def _goes_on(
    static: Static, tokens: Array, counts: Array, limits: Array
) -> Array:
  """Says which responses, after `tokens`, want another one; bool."""
  stops = jnp.isin(tokens, jnp.asarray(static.stop_ids, jnp.int32))
  return ~stops & (counts < limits)


def _laid_out(state: State) -> State:
  """Pins the slots to the mesh in context, if any."""
  cache = policy_lib.laid_out(state.cache)
  rest = jax.tree.map(
      sharding.constrain_rows, dataclasses.replace(state, cache=None)
  )
  return dataclasses.replace(rest, cache=cache)


@functools.partial(jax.jit, static_argnames=("policy", "slots", "capacity"))
def empty(
    policy: policy_lib.Policy, weights: PyTree, slots: int, capacity: int
) -> State:
  """Returns slots at rest."""
  _TRACES["empty"] += 1
  zeros = jnp.zeros(slots, jnp.int32)
  return _laid_out(
      State(
          cache=policy.init_cache(weights, slots, capacity),
          tokens=zeros,
          lengths=zeros + 1,
          counts=zeros,
          limits=zeros,
          keys=jnp.zeros((slots, 2), jnp.uint32),
          temperatures=jnp.ones(slots, jnp.float32),
          active=jnp.zeros(slots, bool),
      )
  )


@functools.partial(jax.jit, static_argnames=("capacity",))
def resize(state: State, capacity: int) -> State:
  """Gives each slot room for `capacity` tokens, at least what it holds."""
  _TRACES["resize"] += 1
  cache = policy_lib.resize(state.cache, capacity)
  return dataclasses.replace(state, cache=cache)


@functools.partial(jax.jit, static_argnames=("policy",))
def prefill(
    policy: policy_lib.Policy, weights: PyTree, tokens: Array, lengths: Array
) -> Prompts:
  """Reads tokens [B, P] of `lengths` int32 [B], padded on the right."""
  _TRACES["prefill"] += 1
  cache, logits = policy.prefill(weights, tokens, lengths)
  return Prompts(cache, logits, lengths)


@functools.partial(
    jax.jit, static_argnames=("static",), donate_argnames=("state",)
)
def fill(
    static: Static, state: State, prompts: Prompts, starts: Starts
) -> tuple[State, sampler.Draw]:
  """Starts responses in slots and draws the first token of each.

  Returns:
    The state, and the Draw of the S rows of `starts`.
  """
  _TRACES["fill"] += 1
  slots, rows = starts.slots, starts.rows
  keys = sampler.response_keys(starts.words)
  # Whole on every device beforehand: few rows, which become many.
  logits = sharding.constrain(prompts.logits, (None, None))[rows]
  drawn = sampler.draw(
      sharding.constrain_rows(logits), keys, starts.counts, starts.temperatures,
      static.truncation, static.topk,
  )
  counts = starts.counts + 1
  started = dict(
      tokens=drawn.tokens,
      lengths=prompts.lengths[rows] - starts.counts,
      counts=counts,
      limits=starts.limits,
      keys=keys,
      temperatures=starts.temperatures,
      active=_goes_on(static, drawn.tokens, counts, starts.limits),
  )
  placed = {
      name: getattr(state, name).at[slots].set(value, mode="drop")
      for name, value in started.items()
  }
  cache = policy_lib.insert(state.cache, slots, prompts.cache, rows)
  return _laid_out(State(cache=cache, **placed)), drawn


@functools.partial(
    jax.jit, static_argnames=("static",), donate_argnames=("state",)
)
def decode(
    static: Static, weights: PyTree, state: State
) -> tuple[State, Array, sampler.Draw]:
  """Decodes until `static.steps` tokens per slot are drawn or all rest.

  Returns:
    The state, the number of steps taken, and a Draw with a leading axis of
    `static.steps`; entries of slots at rest mean nothing.
  """
  _TRACES["decode"] += 1
  lengths = state.lengths + state.counts - 1
  read = static.policy.decode(weights, state.cache, lengths)

  def step(taken, state, recent):
    recent, logits = read(taken, state.tokens, recent)
    drawn = sampler.draw(
        logits, state.keys, state.counts, state.temperatures,
        static.truncation, static.topk,
    )
    counts = state.counts + state.active
    state = dataclasses.replace(
        state,
        tokens=jnp.where(state.active, drawn.tokens, state.tokens),
        counts=counts,
        active=state.active
        & _goes_on(static, drawn.tokens, counts, state.limits),
    )
    return state, recent, drawn

  def advance(carry):
    taken, state, recent, draws = carry
    state, recent, drawn = step(taken, state, recent)
    draws = jax.tree.map(lambda all_, x: all_.at[taken].set(x), draws, drawn)
    return taken + 1, state, recent, draws

  start = jnp.zeros((), jnp.int32)
  cache, rest = state.cache, dataclasses.replace(state, cache=None)
  recent = policy_lib.no_recent(cache, static.steps)
  draws = jax.tree.map(
      lambda x: jnp.zeros((static.steps, *x.shape), x.dtype),
      jax.eval_shape(step, start, rest, recent)[2],
  )
  taken, rest, recent, draws = jax.lax.while_loop(
      lambda carry: (carry[0] < static.steps) & jnp.any(carry[1].active),
      advance,
      (start, rest, recent, draws),
  )
  cache = policy_lib.append(cache, recent, lengths)
  return _laid_out(dataclasses.replace(rest, cache=cache)), taken, draws
