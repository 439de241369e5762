"""Responses that a window cut, and how they go on in the next round.

The next round's policy draws their next tokens; those of before keep what was
recorded when they were drawn. A response keeps its prompt and its sample
number j, and the prompt is not posed anew before all of its responses have
ended: so (k, p, j, t) still names one token.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import hashlib

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.rollout import responses

# What a record says of each token as the engine does, by the engine's names.
_TOKEN_FIELDS = {
    "tokens": "response_tokens",
    "logprobs": "behavior_logprobs",
    "log_kept_mass": "log_kept_mass",
    "topk_ids": "topk_ids",
    "topk_logprobs": "topk_logprobs",
}


def unfinished(rollouts: Iterable[types.Rollout]) -> list[types.Rollout]:
  """Chooses the records that go on, in an order that no shard changes."""
  return sorted(
      (rollout for rollout in rollouts if rollout.unfinished),
      key=lambda rollout: (rollout.prompt_id, rollout.sample_index),
  )


def fingerprint(rollouts: Sequence[types.Rollout]) -> str:
  """Hashes all that a round takes over from the records; 16 hex digits."""
  digest = hashlib.sha256()
  for rollout in rollouts:
    digest.update(f"{rollout.record_id} {rollout.sample_index} ".encode())
    for name in (*_TOKEN_FIELDS.values(), "policy_versions", "prompt_tokens"):
      array = np.ascontiguousarray(getattr(rollout, name))
      digest.update(f"{name} {array.shape} ".encode() + array.tobytes())
  return digest.hexdigest()[:16]


def joined(
    earlier: types.Rollout, response: responses.Response
) -> responses.Response:
  """Puts the tokens of earlier windows before those that were added."""
  tokens = {
      name: np.concatenate([getattr(earlier, field), getattr(response, name)])
      for name, field in _TOKEN_FIELDS.items()
  }
  return dataclasses.replace(response, **tokens)
