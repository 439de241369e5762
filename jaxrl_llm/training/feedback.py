"""What allocation may know of a round, per group, as a JSON file."""

from collections.abc import Iterable, Mapping, Sequence
import pathlib
from typing import Any

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.curation import confidence
from jaxrl_llm.data import atomic
from jaxrl_llm.data import index as indices
from jaxrl_llm.training import rounds


def path_of(workdir: pathlib.Path, number: int) -> pathlib.Path:
  """Returns the file of a round."""
  return workdir / "feedback" / f"round_{number:04d}.json"


def write(
    path: pathlib.Path,
    round_: rounds.Round,
    advantages: Mapping[int, float],
    number: int,
    survivors: frozenset[int] | None = None,
) -> None:
  """Writes one object per group of the round, dropped groups included.

  Of each group: group_id, prompt_id; samples (baselines left out), scored
  (with a verdict), correct (reward part `correct` above 0, or, where rewards
  have no such part, a positive reward), mean_reward over the scored (null
  without), trained (records that entered training), mean_abs_advantage over
  those (0 without), mean_gradient (see `_gradient`) over the correct (0
  without), confidence (under the behaviour policy, see curation.confidence; 0
  where no response has a trained token); with a curation, survivors (of the
  trained, those that it left).

  Args:
    path: of the file; there whole or not at all.
    round_: that was trained on.
    advantages: mean |A| over the response, by record id of trained records.
    number: of the round.
    survivors: record ids that curation left; None without curation.
  """
  index = round_.index
  trained = set(round_.selection.positions.tolist())
  sampled = np.flatnonzero(~index.baseline_mask)
  groups: dict[int, list[int]] = {}
  for position in sampled:
    groups.setdefault(int(index.group_ids[position]), []).append(int(position))
  described = [
      _group(round_, members, trained, advantages)
      | _left(round_, members, survivors)
      for _, members in sorted(groups.items())
  ]
  write_groups(path, number, described)


def write_groups(
    path: pathlib.Path, number: int, groups: Sequence[Mapping[str, Any]]
) -> None:
  """Writes the objects of `write`; none for a round that was left out."""
  path.parent.mkdir(parents=True, exist_ok=True)
  atomic.write_json(path, {"round": number, "groups": groups})


def read(path: pathlib.Path) -> Sequence[Mapping[str, Any]]:
  """Reads the objects of `write`, one per group.

  Raises:
    ValueError: there is no such file, or it is damaged.
  """
  if not path.is_file():
    raise ValueError(
        f"{path}: expected the feedback of a round that was trained on, found"
        " none; the allocation needs it, restore it or begin another --workdir."
    )
  content = atomic.read_json(
      path, ("round", "groups"), "restore it or begin another --workdir"
  )
  return content["groups"]


def _group(
    round_: rounds.Round,
    members: list[int],
    trained: set[int],
    advantages: Mapping[int, float],
) -> dict[str, float | int | None]:
  """Returns what is said of one group."""
  index = round_.index
  rewards = index.rewards[members]
  scored = index.scored_mask[members]
  correct = [
      rollout
      for member in members
      if is_correct(rollout := round_.records[member])
  ]
  used = [member for member in members if member in trained]
  sizes = [advantages[int(index.record_ids[member])] for member in used]
  return {
      "group_id": int(index.group_ids[members[0]]),
      "prompt_id": int(index.prompt_ids[members[0]]),
      "samples": len(members),
      "scored": int(scored.sum()),
      "correct": len(correct),
      "mean_reward": float(rewards[scored].mean()) if scored.any() else None,
      "trained": len(used),
      "mean_abs_advantage": _mean(sizes),
      "mean_gradient": _mean(map(_gradient, correct)),
      "confidence": _confidence([round_.records[n] for n in members]),
  }


def _left(
    round_: rounds.Round, members: list[int], survivors: frozenset[int] | None
) -> dict[str, int]:
  """Returns how many of a group curation left."""
  if survivors is None:
    return {}
  ids = round_.index.record_ids[members].tolist()
  return {"survivors": len(survivors.intersection(ids))}


def is_correct(rollout: types.Rollout) -> bool:
  """Whether the verifier found the answer right; False where it failed."""
  if not np.isfinite(rollout.reward):
    return False
  return rollout.reward_parts.get("correct", rollout.reward) > 0


def _confidence(rollouts: Sequence[types.Rollout]) -> float:
  """Returns exp of the mean over responses of their mean log-prob."""
  masks = [indices.trained_mask(rollout) for rollout in rollouts]
  if not any(mask.any() for mask in masks):
    return 0.0
  logprobs = [r.behavior_logprobs + r.log_kept_mass for r in rollouts]
  return confidence.confidence(logprobs, masks)


def _gradient(rollout) -> float:
  """Returns √Σ_t (1 − π(y_t))² over the tokens of a response.

  The norm of the gradient of Σ_t log π(y_t) by the logits is
  √Σ_t ‖e_{y_t} − π_t‖², at least this and at most √2 times this, since the
  other tokens' probabilities add up to 1 − π(y_t). π is the behaviour policy
  over the whole vocabulary.
  """
  logprobs = rollout.behavior_logprobs + rollout.log_kept_mass
  missing = 1 - np.exp(logprobs[rollout.response_mask].astype(np.float64))
  return float(np.sqrt(np.sum(missing**2)))


def _mean(values: Iterable[float]) -> float:
  """Returns the mean, 0 of nothing."""
  values = list(values)
  return float(np.mean(values)) if values else 0.0
