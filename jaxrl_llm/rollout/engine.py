"""Decodes many responses at once in slots that are refilled as they finish.

A prompt is read once for all of its responses. Every compiled shape comes
from the settings or from the prompt's own length, and a row of a batch is
computed from that row alone, so the tokens of a response depend neither on
what else is decoded nor on its slot.
"""

import collections
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import functools

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.rollout import responses
from jaxrl_llm.rollout import sampler
from jaxrl_llm.rollout import slots as slots_lib

PyTree = types.PyTree
Request = responses.Request
Response = responses.Response
compilations = slots_lib.compilations


@dataclasses.dataclass(frozen=True)
class Shapes:
  """What the compiled functions are made for.

  Attributes:
    slots: S, responses decoded at once.
    prefill_rows: B, prompts read at once.
    prompt_buckets: padded prompt lengths in tokens, ascending; a prompt that
      is read with the beginning of a response may need a longer one, see
      `prefix_buckets`.
    steps_per_call: most tokens decoded per slot between two refills.
    spread_weights: see Policy.serving_copy.
  """

  slots: int
  prefill_rows: int
  prompt_buckets: tuple[int, ...]
  steps_per_call: int
  spread_weights: bool = False


class Engine:
  """Slots and the weights that fill them; made once per set of weights."""

  def __init__(
      self,
      policy: policy_lib.Policy,
      params: PyTree,
      stop_ids: Sequence[int],
      sampling: sampler.SamplingSettings,
      shapes: Shapes,
      window: int = 0,
      mesh: jax.sharding.Mesh | None = None,
  ):
    """Lays the weights out for sampling.

    Args:
      policy: the network.
      params: masters or a compute copy.
      stop_ids: ids that end a response; none is ever forced.
      sampling: truncation, response limit and recorded top-K; each request
        brings its own temperatures.
      shapes: see Shapes.
      window: most tokens that a request adds to a response; 0 for no limit
        but sampling.max_new_tokens.
      mesh: that `params` lie on, all of this process; slots and prompts are
        spread over its rows. None takes the one device of `params`.

    Raises:
      ValueError: the slots do not divide over the rows of the mesh.
    """
    if mesh is not None:
      sharding.check_rows("generation.slots", shapes.slots, mesh)
    self._mesh = mesh if mesh is not None and mesh.size > 1 else None
    self._policy = policy
    self._weights = self._call(
        serving_copy, policy, params, shapes.spread_weights
    )
    self._shapes = shapes
    self._max_new_tokens = sampling.max_new_tokens
    self._window = window or sampling.max_new_tokens
    self._longest = shapes.prompt_buckets[-1] + sampling.max_new_tokens
    self._capacities = capacities(self._longest + shapes.steps_per_call)
    self._static = slots_lib.Static(
        policy=policy,
        truncation=sampling.truncation,
        topk=sampling.record_topk,
        stop_ids=tuple(sorted(stop_ids)),
        steps=shapes.steps_per_call,
    )

  def run(
      self, requests: Sequence[Request]
  ) -> Iterator[tuple[int, int, Response]]:
    """Answers requests, from empty slots until all are drained.

    Args:
      requests: prompts and the responses wanted of each.

    Yields:
      (index of the request, index of its response, the response) as they
      finish.

    Raises:
      ValueError: a prompt is empty or too long, or a response that is to go
        on has all the tokens that it may have.
      FloatingPointError: the model gave log-probs that are not finite.
    """
    unread = self._batches(requests)
    prompts, waiting = None, collections.deque()
    slots = self._shapes.slots
    state = self._call(
        slots_lib.empty, self._policy, self._weights, slots,
        self._capacities[0],
    )
    free, running = list(range(slots)), {}
    while running or waiting or unread:
      started = []
      while free and (waiting or unread):
        if not waiting:
          prompts, waiting = self._read(requests, unread.popleft())
        count = min(len(free), len(waiting))
        chosen = [waiting.popleft() for _ in range(count)]
        places, free = free[:count], free[count:]
        starts = self._starts(requests, places, chosen)
        state = self._fit(state, prompts.cache.capacity, shrink=False)
        state, drawn = self._call(
            slots_lib.fill, self._static, state, prompts, starts
        )
        started.append((places, drawn))
        for slot, (_, request, sample) in zip(places, chosen):
          running[slot] = self._begin(requests, request, sample)
      longest = max((x.length for x in running.values()), default=0)
      state = self._fit(state, longest + self._static.steps, shrink=True)
      state, taken, draws = self._call(
          slots_lib.decode, self._static, self._weights, state
      )
      started, taken, draws = jax.device_get((started, taken, draws))
      for places, drawn in started:
        for row, slot in enumerate(places):
          running[slot].add(jax.tree.map(lambda x: x[row : row + 1], drawn))
      for slot, response in list(running.items()):
        response.add(jax.tree.map(lambda x: x[:taken, slot], draws))
        if response.finish_reason:
          del running[slot]
          free.append(slot)
          yield response.request, response.sample, response.collect()
      free.sort()

  def _call(self, compiled, *arguments):
    """Calls a compiled function with the mesh in context."""
    mesh = self._mesh
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
      return compiled(*arguments)

  def _fit(self, state, tokens, shrink):
    """Gives slots room for `tokens`; takes room that is twice too much."""
    wanted = next(x for x in self._capacities if x >= tokens)
    found = state.cache.capacity
    if wanted > found or (shrink and 2 * wanted <= found):
      state = self._call(slots_lib.resize, state, wanted)
    return state

  def _batches(self, requests):
    """Checks requests; groups those of one bucket, `prefill_rows` at a time."""
    buckets = prefix_buckets(self._shapes.prompt_buckets, self._longest)
    members = {bucket: [] for bucket in buckets}
    for index, request in enumerate(requests):
      self._check(index, request)
      length = len(request.tokens)
      members[next(x for x in buckets if length <= x)].append(index)
    rows = self._shapes.prefill_rows
    return collections.deque(
        (bucket, indices[start : start + rows])
        for bucket, indices in members.items()
        for start in range(0, len(indices), rows)
    )

  def _check(self, index, request):
    """Refuses what no bucket holds or the model has no room for."""
    longest = self._shapes.prompt_buckets[-1]
    limit = self._policy.config.context_length - self._max_new_tokens
    length = len(request.tokens) - request.drawn
    if not 0 < length <= min(limit, longest):
      raise ValueError(
          f"prompt {index} has {length} tokens, expected 1 to "
          f"{min(limit, longest)}: the largest of "
          f"generation.prompt_buckets is {longest}, and the model's "
          f"context less sampling.max_new_tokens is {limit}; raise the "
          "bucket, or lower prompts.max_tokens."
      )
    if request.drawn >= self._most(request):
      raise ValueError(
          f"response to prompt {index}: expected fewer than "
          f"sampling.max_new_tokens = {self._most(request)} tokens to go on "
          f"from, found {request.drawn}; generate with the settings that it "
          "was begun with."
      )

  def _most(self, request):
    """Returns the response tokens at which a response is over."""
    return min(self._max_new_tokens, request.limit or self._max_new_tokens)

  def _limit(self, request):
    """Returns the response tokens at which it is cut here."""
    return min(self._most(request), request.drawn + self._window)

  def _begin(self, requests, index, sample):
    """Returns a response in the making."""
    request = requests[index]
    limit = self._limit(request)
    cut = "length" if limit == self._most(request) else "window"
    return responses.Running(
        index, sample, self._static.stop_ids, limit - request.drawn, cut,
        len(request.tokens),
    )

  def _read(self, requests, batch):
    """Prefills prompts; lists (row, request, sample) of their responses."""
    bucket, indices = batch
    tokens = np.zeros((self._shapes.prefill_rows, bucket), np.int32)
    lengths = np.ones(self._shapes.prefill_rows, np.int32)
    for row, index in enumerate(indices):
      lengths[row] = len(requests[index].tokens)
      tokens[row, : lengths[row]] = requests[index].tokens
    prompts = self._call(
        slots_lib.prefill, self._policy, self._weights, tokens, lengths
    )
    return prompts, collections.deque(
        (row, index, sample)
        for row, index in enumerate(indices)
        for sample in range(len(requests[index].words))
    )

  def _starts(self, requests, places, chosen):
    """Lays out responses that begin or go on, padded to one row per slot."""
    slots = self._shapes.slots
    starts = slots_lib.Starts(
        slots=np.full(slots, slots, np.int32),
        rows=np.zeros(slots, np.int32),
        counts=np.zeros(slots, np.int32),
        limits=np.zeros(slots, np.int32),
        words=np.zeros((slots, requests[0].words.shape[1]), np.uint32),
        temperatures=np.ones(slots, np.float32),
    )
    for place, (slot, (row, index, sample)) in enumerate(zip(places, chosen)):
      starts.slots[place] = slot
      starts.rows[place] = row
      starts.counts[place] = requests[index].drawn
      starts.limits[place] = self._limit(requests[index])
      starts.words[place] = requests[index].words[sample]
      starts.temperatures[place] = requests[index].temperatures[sample]
    return starts


def prefix_buckets(
    prompt_buckets: Sequence[int], capacity: int
) -> tuple[int, ...]:
  """Adds the padded lengths of prompts that are read with part of a response.

  Each is twice the one before, so padding less than doubles a prefix and few
  shapes are compiled; a length compiles when something needs it.

  Args:
    prompt_buckets: ascending.
    capacity: longest prompt and response together.
  """
  buckets = list(prompt_buckets)
  while buckets[-1] < capacity:
    buckets.append(min(2 * buckets[-1], capacity))
  return tuple(buckets)


def capacities(longest: int) -> tuple[int, ...]:
  """Lists the tokens that slots have room for, as they come to need it.

  A step costs what the capacity costs. Two per octave waste a quarter of it
  on average, and compile a handful of shapes.

  Args:
    longest: tokens that a slot may come to hold.
  """
  block = policy_lib.CACHE_BLOCK
  last = -(-longest // block) * block
  sizes, size = [], block
  while size < last:
    sizes.append(size)
    size += max(block, 1 << (size // 2).bit_length() - 1)
  return (*sizes, last)


@functools.partial(jax.jit, static_argnames=("policy", "spread"))
def serving_copy(
    policy: policy_lib.Policy, params: PyTree, spread: bool
) -> PyTree:
  """Lays weights out for sampling; see Policy.serving_copy."""
  return policy.serving_copy(params, spread=spread)
