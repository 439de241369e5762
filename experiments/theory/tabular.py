"""Small autoregressive policies whose every response can be listed.

A policy is a table of log-probs [S, V]: one row per prefix (the empty one
first, then all of length 1, 2, …), one column per token. Arrays over all
N = V^T responses of length T are [N, T].
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types


@dataclasses.dataclass(frozen=True)
class Responses:
  """All responses of a length over a vocabulary.

  Attributes:
    tokens: int [N, T].
    states: int [N, T], row of the prefix before each token.
    prefixes: int [N, T], number of the prefix up to and with the token,
      unique per position.
  """

  tokens: np.ndarray
  states: np.ndarray
  prefixes: np.ndarray
  vocabulary: int

  @property
  def state_count(self) -> int:
    """S."""
    return int(self.states.max()) + 1


def responses(vocabulary: int, length: int) -> Responses:
  """Lists all responses in lexicographic order."""
  grid = np.meshgrid(*[np.arange(vocabulary)] * length, indexing="ij")
  tokens = np.stack(grid, axis=-1).reshape(-1, length)
  prefixes = np.zeros_like(tokens)
  states = np.zeros_like(tokens)
  before, first = np.zeros(len(tokens), int), 0
  for t in range(length):
    states[:, t] = first + before
    before = before * vocabulary + tokens[:, t]
    prefixes[:, t] = before
    first += vocabulary**t
  return Responses(tokens, states, prefixes, vocabulary)


def policy(rng: np.random.Generator, everything: Responses) -> np.ndarray:
  """A random table of log-probs [S, V]."""
  shape = (everything.state_count, everything.vocabulary)
  return normalized(rng.normal(size=shape))


def normalized(logits: Any) -> np.ndarray:
  """log softmax over the last axis."""
  logits = np.asarray(logits)
  return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def pick(table: Any, everything: Responses) -> Any:
  """Log-prob of each token of each response, [N, T]."""
  return table[everything.states, everything.tokens]


def probabilities(table: np.ndarray, everything: Responses) -> np.ndarray:
  """Probability of each response, [N]."""
  return np.exp(np.sum(pick(table, everything), axis=1))


def action_values(
    weights: np.ndarray, outcomes: np.ndarray, everything: Responses
) -> np.ndarray:
  """Q(s_t, y_t) = E[R | y_1…y_t] under response probabilities [N], [N, T]."""
  columns = []
  for prefixes in everything.prefixes.T:
    mass = np.bincount(prefixes, weights)
    columns.append((np.bincount(prefixes, weights * outcomes) / mass)[prefixes])
  return np.stack(columns, axis=1)


def terms(
    anchor: np.ndarray,
    live: np.ndarray,
    advantages: np.ndarray,
    everything: Responses,
) -> types.Terms:
  """All responses as one batch; both anchors and the top-V are `anchor`."""
  ids = np.broadcast_to(
      np.arange(everything.vocabulary),
      (*everything.tokens.shape, everything.vocabulary),
  )
  recorded = jnp.asarray(pick(anchor, everything))
  return types.Terms(
      mask=jnp.ones(everything.tokens.shape, bool),
      tokens=jnp.asarray(everything.tokens),
      advantages=jnp.broadcast_to(
          jnp.asarray(advantages, recorded.dtype), recorded.shape
      ),
      behavior_logprobs=recorded,
      proximal_logprobs=recorded,
      logprobs=jnp.asarray(pick(live, everything)),
      topk_ids=jnp.asarray(ids),
      topk_anchor_logprobs=jnp.asarray(anchor[everything.states]),
      topk_logprobs=jnp.asarray(live[everything.states]),
  )
