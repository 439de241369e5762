"""What allocation may know of a round, per group, as a JSON file."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.curation import confidence
from jaxrl_llm.data import atomic
from jaxrl_llm.data import index as indices
from jaxrl_llm.training import recorded
from jaxrl_llm.training import rounds


def path_of(workdir: pathlib.Path, number: int) -> pathlib.Path:
  """Returns the file of a round."""
  return workdir / "feedback" / f"round_{number:04d}.json"


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What the feedback needs of one record.

  Attributes:
    correct: of `is_correct`.
    gradient: of `_gradient`, where correct.
    mean_logprobs: float64 [1], nats: mean over the trained tokens under the
      behaviour policy; [0] without one.
  """

  correct: bool
  gradient: float
  mean_logprobs: np.ndarray


def outcomes(round_: rounds.Round) -> dict[int, Outcome]:
  """Returns those of a round by position, baselines left out.

  All hosts call; each reads a part of the records.
  """
  sampled = np.flatnonzero(~round_.index.baseline_mask)
  if not sampled.size:
    return {}
  found = recorded.gather(round_.records, sampled, _outcome)
  parts = zip(found["correct"], found["gradient"], found["mean_logprobs"])
  return {
      position: Outcome(bool(correct[0]), float(gradient[0]), means)
      for position, (correct, gradient, means) in zip(sampled.tolist(), parts)
  }


def _outcome(rollout: types.Rollout) -> dict[str, np.ndarray]:
  correct, mask = is_correct(rollout), indices.trained_mask(rollout)
  logprobs = (rollout.behavior_logprobs + rollout.log_kept_mass)[mask]
  means = [np.mean(logprobs, dtype=np.float64)] if mask.any() else []
  return {
      "correct": np.array([correct]),
      "gradient": np.array([_gradient(rollout) if correct else 0.0]),
      "mean_logprobs": np.array(means, np.float64),
  }


def write(
    path: pathlib.Path,
    round_: rounds.Round,
    known: Mapping[int, Outcome],
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
    known: of `outcomes`.
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
      _group(round_, members, known, trained, advantages)
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
    known: Mapping[int, Outcome],
    trained: set[int],
    advantages: Mapping[int, float],
) -> dict[str, float | int | None]:
  """Returns what is said of one group."""
  index = round_.index
  rewards = index.rewards[members]
  scored = index.scored_mask[members]
  correct = [known[member] for member in members if known[member].correct]
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
      "mean_gradient": _mean(outcome.gradient for outcome in correct),
      "confidence": _confidence([known[member] for member in members]),
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


def _confidence(members: Sequence[Outcome]) -> float:
  """Returns exp of the mean over responses of their mean log-prob."""
  means = [member.mean_logprobs for member in members]
  if not any(mean.size for mean in means):
    return 0.0
  return confidence.confidence(means, [np.ones(x.size, bool) for x in means])


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
