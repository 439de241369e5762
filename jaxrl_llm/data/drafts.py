"""Responses of a dump, checked, and the records that are made of them."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import behavior
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import prompts as prompts_lib


@dataclasses.dataclass(frozen=True)
class Draft:
  """A response of a dump, checked, before it is numbered.

  Attributes:
    place: "file:line", and the number of the response where a row has several.
    prompt_tokens: int32 [P].
    question: the problem as given; empty where the dump has only ids.
    prompt_text: what the record shows of the prompt.
    response_tokens: int32 [R].
    response_text: decoded.
    response_mask: bool [R].
    drawn: log-probs and settings of the distribution sampled from.
    finish_reason: in the contract's words.
    reward: NaN where the dump says so.
    reference_answer: empty where the dump has none.
    policy_version: of every token.
    group: what is equal within a group.
  """

  place: str
  prompt_tokens: np.ndarray
  question: str
  prompt_text: str
  response_tokens: np.ndarray
  response_text: str
  response_mask: np.ndarray
  drawn: behavior.Drawn
  finish_reason: str
  reward: float
  reference_answer: str
  policy_version: int
  group: tuple[str | int, ...]


def number(
    drafts: Sequence[Draft], lineage: str, round_number: int
) -> list[types.Rollout]:
  """Gives each response its ids and makes the records, in order.

  Raises:
    ValueError: a group with two prompts.
  """
  counts: dict[int, int] = {}
  firsts: dict[int, Draft] = {}
  rollouts = []
  for draft in drafts:
    key = (lineage, round_number)
    group_id = fingerprints.of_parts("group", *key, *draft.group)
    first = firsts.setdefault(group_id, draft)
    if not np.array_equal(first.prompt_tokens, draft.prompt_tokens):
      raise ValueError(
          f"{draft.place}: group: {draft.group[1:]} has another prompt at"
          f" {first.place}; map a field that is equal for one prompt's"
          " responses alone."
      )
    prompt_id = _prompt_id(draft)
    sample_index = counts.get(prompt_id, 0)
    counts[prompt_id] = sample_index + 1
    rollouts.append(
        _rollout(
            draft,
            record_id=fingerprints.of_record(*key, prompt_id, sample_index),
            prompt_id=prompt_id,
            group_id=group_id,
            sample_index=sample_index,
            round=round_number,
            lineage=lineage,
        )
    )
  return rollouts


def _rollout(draft: Draft, **identity: Any) -> types.Rollout:
  """Makes a record of a checked response."""
  length = draft.response_tokens.size
  return types.Rollout(
      **identity,
      prompt_tokens=draft.prompt_tokens,
      response_tokens=draft.response_tokens,
      response_mask=draft.response_mask,
      behavior_logprobs=draft.drawn.logprobs,
      log_kept_mass=draft.drawn.log_kept_mass,
      policy_versions=np.full(length, draft.policy_version, np.int32),
      window_start=0,
      topk_ids=np.zeros((length, 0), np.int32),
      topk_logprobs=np.zeros((length, 0), np.float32),
      finish_reason=draft.finish_reason,
      role="train",
      temperature=draft.drawn.temperature,
      reward=draft.reward,
      reward_parts={},
      reference_answer=draft.reference_answer,
      prompt_text=draft.prompt_text,
      response_text=draft.response_text,
  )


def _prompt_id(draft: Draft) -> int:
  """Names the problem: as prompts do by its question, else by its ids."""
  if draft.question:
    return fingerprints.of_parts(
        "prompt", prompts_lib.normalise(draft.question)
    )
  return fingerprints.of_parts("prompt", fingerprints.of_tokens(
      draft.prompt_tokens
  ))
