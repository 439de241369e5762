"""Curation of a rollout batch, and of the mini-batches that are cut from it."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.curation import episodes as episodes_lib
from jaxrl_llm.data import index as indices

# Fields of a record with an entry per response token.
_TOKEN_FIELDS = (
    "response_tokens",
    "response_mask",
    "behavior_logprobs",
    "log_kept_mass",
    "policy_versions",
    "topk_ids",
    "topk_logprobs",
)


@dataclasses.dataclass(frozen=True)
class Cut:
  """What curation left of a mini-batch.

  Attributes:
    places: int64 [K], numbers of the survivors among the records.
    rollouts: K records, cut after the last token that counts.
    terms: prepared terms of the same, by name.
  """

  places: np.ndarray
  rollouts: Sequence[types.Rollout]
  terms: Mapping[str, Sequence[np.ndarray]]

  def of(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Cuts an [R] per record of the mini-batch likewise."""
    return [
        values[place][: rollout.response_tokens.size]
        for place, rollout in zip(self.places, self.rollouts)
    ]


def ends(
    masks: Iterable[np.ndarray], weights: Sequence[np.ndarray]
) -> np.ndarray:
  """int64 [N]: response tokens up to the last that counts; 0 where none.

  Args:
    masks: bool, an [R] per record, trained tokens.
    weights: an [R] per record.
  """
  result = []
  for mask, row in zip(masks, weights):
    counting = np.flatnonzero(mask & (row != 0))
    result.append(counting[-1] + 1 if counting.size else 0)
  return np.array(result, np.int64)


def cut(
    rollouts: Sequence[types.Rollout],
    terms: Mapping[str, Sequence[np.ndarray]],
) -> Cut:
  """Leaves out episodes without weight, and tokens after the last with one.

  Args:
    rollouts: N records.
    terms: prepared terms with `weights`, an entry per record.
  """
  stops = ends(map(indices.trained_mask, rollouts), terms["weights"])
  places = np.flatnonzero(stops)
  chosen = [_shorten(rollouts[n], int(stops[n])) for n in places]
  kept = {}
  for name, values in terms.items():
    kept[name] = [
        values[n][: stops[n]] if np.ndim(values[n]) else values[n]
        for n in places
    ]
  return Cut(places, chosen, kept)


def _shorten(rollout: types.Rollout, stop: int) -> types.Rollout:
  if stop == rollout.response_tokens.size:
    return rollout
  fields = {name: getattr(rollout, name)[:stop] for name in _TOKEN_FIELDS}
  return dataclasses.replace(rollout, **fields)


def question_means(
    rollouts: Sequence[types.Rollout],
) -> list[np.ndarray]:
  """N arrays [R]: 1 / (Q n_q) on trained tokens, a mean of questions' means."""
  masks = [indices.trained_mask(rollout) for rollout in rollouts]
  tokens: dict[int, int] = {}
  for rollout, mask in zip(rollouts, masks):
    group = rollout.group_id
    tokens[group] = tokens.get(group, 0) + int(mask.sum())
  return [
      np.where(mask, 1.0 / (len(tokens) * tokens[rollout.group_id]), 0.0)
      for rollout, mask in zip(rollouts, masks)
  ]


def divides_by_original(step: episodes_lib.Step | None) -> bool:
  """Whether the sums are divided by what a mini-batch held before curation."""
  return step is not None and step.denominator != episodes_lib.SURVIVORS


def numbers(
    step: episodes_lib.Step,
    masks: Sequence[np.ndarray],
    terms: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, float]:
  """Returns what the metrics say of the curation of a rollout batch.

  Args:
    step: of the curation.
    masks: bool, an [R] per record, trained tokens.
    terms: prepared terms with `weights`, and `scores` where the step has them.
  """
  stops = ends(masks, terms["weights"])
  sizes = [len(mask) for mask in masks]
  values = {
      "curation/survivors": int(np.sum(stops > 0)),
      "curation/survivor_share": float(np.mean(stops > 0)),
      "curation/response_tokens_kept": float(np.sum(stops) / np.sum(sizes)),
  }
  if "scores" in terms:
    scores = np.asarray(terms["scores"])
    finite = scores[np.isfinite(scores)]
    values |= {
        "influence/not_finite": int(scores.size - finite.size),
        "influence/positive_share": float(np.mean(scores > 0)),
        "influence/stopped": int(step.stops(scores)),
    }
    if finite.size:
      values |= {
          "influence/mean": float(finite.mean()),
          "influence/min": float(finite.min()),
          "influence/max": float(finite.max()),
      }
  return values
