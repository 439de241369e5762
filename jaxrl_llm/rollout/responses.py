"""What is asked of the engine, what it gives, and what is in the making."""

from collections.abc import Sequence
import dataclasses

import jax
import numpy as np

from jaxrl_llm.rollout import sampler


@dataclasses.dataclass(frozen=True)
class Request:
  """A prompt and the responses wanted of it, or one that is to go on.

  Attributes:
    tokens: int32 [P]; of one that goes on, the prompt and what was drawn.
    words: uint32 [G, 7] of `sampler.request_words`, one row per response.
    temperatures: float32 [G]; 0 takes the most likely tokens.
    drawn: last entries of `tokens` that are the response's. The next token
      is drawn with the key of the position `drawn`.
    limit: response tokens at which each is cut, where that is before
      sampling.max_new_tokens; 0 for no limit of its own.
  """

  tokens: np.ndarray
  words: np.ndarray
  temperatures: np.ndarray
  drawn: int = 0
  limit: int = 0


@dataclasses.dataclass(frozen=True)
class Response:
  """One response, or the tokens that a request added to it.

  Attributes:
    tokens: int32 [R], the stop id included when one was drawn.
    logprobs: float32 [R]; see sampler.Draw, as for the following.
    log_kept_mass: float32 [R].
    topk_ids: int32 [R, K].
    topk_logprobs: float32 [R, K].
    finish_reason: "stop" if the last token is a stop id; else "length" at
      sampling.max_new_tokens or the request's limit, "window" where a window
      cut it before.
  """

  tokens: np.ndarray
  logprobs: np.ndarray
  log_kept_mass: np.ndarray
  topk_ids: np.ndarray
  topk_logprobs: np.ndarray
  finish_reason: str


@dataclasses.dataclass
class Running:
  """A response in the making.

  Attributes:
    request: index of the request.
    sample: index of its response.
    stop_ids: ids that end it.
    room: tokens that may still be added.
    cut: finish reason where there is no room left.
    length: tokens of the prompt and of the response so far.
    finish_reason: empty until it ends.
    parts: what was drawn.
  """

  request: int
  sample: int
  stop_ids: Sequence[int]
  room: int
  cut: str
  length: int
  finish_reason: str = ""
  parts: list[sampler.Draw] = dataclasses.field(default_factory=list)

  def add(self, drawn: sampler.Draw) -> None:
    """Appends tokens [R'], up to the one that ends the response."""
    if self.finish_reason:
      return
    stops = np.flatnonzero(np.isin(drawn.tokens, self.stop_ids))
    taken = min(self.room, len(drawn.tokens), *(stops[:1] + 1))
    self.parts.append(jax.tree.map(lambda x: x[:taken], drawn))
    self.room -= taken
    self.length += taken
    if stops.size and taken == stops[0] + 1:
      self.finish_reason = "stop"
    elif not self.room:
      self.finish_reason = self.cut

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
