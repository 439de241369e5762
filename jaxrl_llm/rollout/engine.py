"""Decodes many responses at once in slots that are refilled as they finish.

A prompt is read once for all of its responses. Every compiled shape comes
from the settings or from the prompt's own length, and a row of a batch is
computed from that row alone, so the tokens of a response depend neither on
what else is decoded nor on its slot.
"""

import collections
from collections.abc import Iterator, Sequence
import dataclasses
import functools

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.rollout import sampler
from jaxrl_llm.rollout import slots as slots_lib

PyTree = types.PyTree
compilations = slots_lib.compilations


@dataclasses.dataclass(frozen=True)
class Shapes:
  """What the compiled functions are made for.

  Attributes:
    slots: S, responses decoded at once.
    prefill_rows: B, prompts read at once.
    prompt_buckets: padded prompt lengths in tokens, ascending.
    steps_per_call: most tokens decoded per slot between two refills.
  """

  slots: int
  prefill_rows: int
  prompt_buckets: tuple[int, ...]
  steps_per_call: int


@dataclasses.dataclass(frozen=True)
class Request:
  """A prompt and the responses wanted of it.

  Attributes:
    tokens: int32 [P].
    words: uint32 [G, 7] of `sampler.request_words`, one row per response.
    temperatures: float32 [G]; 0 takes the most likely tokens.
  """

  tokens: np.ndarray
  words: np.ndarray
  temperatures: np.ndarray


@dataclasses.dataclass(frozen=True)
class Response:
  """One response.

  Attributes:
    tokens: int32 [R], the stop id included when one was drawn.
    logprobs: float32 [R]; see sampler.Draw, as for the following.
    log_kept_mass: float32 [R].
    topk_ids: int32 [R, K].
    topk_logprobs: float32 [R, K].
    finish_reason: "stop" if the last token is a stop id, else "length".
  """

  tokens: np.ndarray
  logprobs: np.ndarray
  log_kept_mass: np.ndarray
  topk_ids: np.ndarray
  topk_logprobs: np.ndarray
  finish_reason: str


class Engine:
  """Slots and the weights that fill them; made once per set of weights."""

  def __init__(
      self,
      policy: policy_lib.Policy,
      params: PyTree,
      stop_ids: Sequence[int],
      sampling: sampler.SamplingSettings,
      shapes: Shapes,
  ):
    """Rounds the weights to the compute dtype.

    Args:
      policy: the network.
      params: masters or a compute copy.
      stop_ids: ids that end a response; none is ever forced.
      sampling: truncation, response limit and recorded top-K; each request
        brings its own temperatures.
      shapes: see Shapes.

    """
    self._policy = policy
    self._params = _compute_copy(policy, params)
    self._shapes = shapes
    self._capacity = shapes.prompt_buckets[-1] + sampling.max_new_tokens
    self._static = slots_lib.Static(
        policy=policy,
        truncation=sampling.truncation,
        topk=sampling.record_topk,
        stop_ids=tuple(sorted(stop_ids)),
        max_new_tokens=sampling.max_new_tokens,
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
      ValueError: a prompt is empty or too long.
      FloatingPointError: the model gave log-probs that are not finite.
    """
    unread = self._batches(requests)
    prompts, waiting = None, collections.deque()
    slots = self._shapes.slots
    state = slots_lib.empty(self._policy, slots, self._capacity)
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
        state, drawn = slots_lib.fill(self._static, state, prompts, starts)
        started.append((places, drawn))
        for slot, (_, request, sample) in zip(places, chosen):
          running[slot] = _Running(request, sample, self._static)
      state, taken, draws = slots_lib.decode(self._static, self._params, state)
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

  def _batches(self, requests):
    """Checks prompts; groups those of one bucket, `prefill_rows` at a time."""
    buckets = self._shapes.prompt_buckets
    limit = self._policy.config.context_length - self._static.max_new_tokens
    members = {bucket: [] for bucket in buckets}
    for index, request in enumerate(requests):
      length = len(request.tokens)
      fitting = [bucket for bucket in buckets if length <= bucket]
      if not length or not fitting or length > limit:
        raise ValueError(
            f"prompt {index} has {length} tokens, expected 1 to "
            f"{min(limit, buckets[-1])}: the largest of "
            f"generation.prompt_buckets is {buckets[-1]}, and the model's "
            f"context less sampling.max_new_tokens is {limit}; raise the "
            "bucket, or lower prompts.max_tokens."
        )
      members[fitting[0]].append(index)
    rows = self._shapes.prefill_rows
    return collections.deque(
        (bucket, indices[start : start + rows])
        for bucket, indices in members.items()
        for start in range(0, len(indices), rows)
    )

  def _read(self, requests, batch):
    """Prefills prompts; lists (row, request, sample) of their responses."""
    bucket, indices = batch
    tokens = np.zeros((self._shapes.prefill_rows, bucket), np.int32)
    lengths = np.ones(self._shapes.prefill_rows, np.int32)
    for row, index in enumerate(indices):
      lengths[row] = len(requests[index].tokens)
      tokens[row, : lengths[row]] = requests[index].tokens
    prompts = slots_lib.prefill(self._policy, self._params, tokens, lengths)
    return prompts, collections.deque(
        (row, index, sample)
        for row, index in enumerate(indices)
        for sample in range(len(requests[index].words))
    )

  def _starts(self, requests, places, chosen):
    """Lays out responses that begin, padded to one row per slot."""
    slots = self._shapes.slots
    starts = slots_lib.Starts(
        slots=np.full(slots, slots, np.int32),
        rows=np.zeros(slots, np.int32),
        words=np.zeros((slots, requests[0].words.shape[1]), np.uint32),
        temperatures=np.ones(slots, np.float32),
    )
    for place, (slot, (row, index, sample)) in enumerate(zip(places, chosen)):
      starts.slots[place] = slot
      starts.rows[place] = row
      starts.words[place] = requests[index].words[sample]
      starts.temperatures[place] = requests[index].temperatures[sample]
    return starts


@dataclasses.dataclass
class _Running:
  """A response in the making; `finish_reason` is empty until it ends."""

  request: int
  sample: int
  static: slots_lib.Static
  finish_reason: str = ""
  count: int = 0
  parts: list[sampler.Draw] = dataclasses.field(default_factory=list)

  def add(self, drawn: sampler.Draw) -> None:
    """Appends tokens [R'], up to the one that ends the response."""
    if self.finish_reason:
      return
    stops = np.flatnonzero(np.isin(drawn.tokens, self.static.stop_ids))
    room = self.static.max_new_tokens - self.count
    taken = min(room, len(drawn.tokens), *(stops[:1] + 1))
    self.parts.append(jax.tree.map(lambda x: x[:taken], drawn))
    self.count += taken
    if stops.size and taken == stops[0] + 1:
      self.finish_reason = "stop"
    elif taken == room:
      self.finish_reason = "length"

  def collect(self) -> Response:
    """Joins the parts."""
    drawn = jax.tree.map(lambda *x: np.concatenate(x), *self.parts)
    if not np.isfinite(drawn.logprobs).all():
      raise FloatingPointError(
          f"request {self.request}, response {self.sample}: the model gave "
          "log-probs that are not finite; its weights are damaged or have "
          "diverged, restore an earlier checkpoint."
      )
    return Response(
        finish_reason=self.finish_reason,
        **{
            field.name: getattr(drawn, field.name)
            for field in dataclasses.fields(drawn)
        },
    )


@functools.partial(jax.jit, static_argnames=("policy",))
def _compute_copy(policy, params):
  return policy.compute_copy(params)
