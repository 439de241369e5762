"""What a round of rollouts looks like, in numbers to print."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from jaxrl_llm import types


@dataclasses.dataclass(frozen=True)
class RoundStats:
  """Means over the trained records of a round (baselines left out).

  An unfinished response has no reward; it enters none of their numbers.

  Attributes:
    records: all of them, baselines too.
    prompts: distinct ones.
    reward: mean of the rewards that are numbers; NaN if there is none.
    reward_parts: means of the parts that are numbers.
    mixed: share of groups whose rewards differ: those that teach.
    finished: share of responses that end with a stop id.
    reasons: number of responses by finish reason, "window" being unfinished.
    continued: responses that an earlier round began.
    failed: records whose verifier failed; their reward is NaN.
    length: mean response tokens, those of earlier rounds included.
    longest: most response tokens.
    kept_mass: mean probability mass that truncated sampling kept, per token.
    logprob: mean behaviour log-prob per token, nats.
    generated: records made by this call; the others were there already.
    seconds: that took, compilation included.
    tokens_per_second: new response tokens made per second of that.
  """

  records: int
  prompts: int
  reward: float
  reward_parts: Mapping[str, float]
  mixed: float
  finished: float
  reasons: Mapping[str, int]
  continued: int
  failed: int
  length: float
  longest: int
  kept_mass: float
  logprob: float
  generated: int
  seconds: float
  tokens_per_second: float

  def __str__(self) -> str:
    parts = "".join(f", {k} {v:.3f}" for k, v in self.reward_parts.items())
    reasons = ", ".join(f"{k} {v}" for k, v in self.reasons.items())
    continued = f"; continued {self.continued}" if self.continued else ""
    line = (
        f"{self.records} responses to {self.prompts} prompts: reward "
        f"{self.reward:.3f}{parts}; mixed groups {self.mixed:.0%}; finished "
        f"{self.finished:.0%} ({reasons}){continued}; verifier failed "
        f"{self.failed}; tokens "
        f"{self.length:.1f} (longest {self.longest}); kept mass "
        f"{self.kept_mass:.4f}"
    )
    if self.generated:
      line += (
          f"; {self.generated} new in {self.seconds:.1f} s, "
          f"{self.tokens_per_second:.0f} tokens/s"
      )
    return line


class Tally:
  """Adds up shards, so that a round need not fit into memory."""

  def __init__(self):
    self._sums = collections.Counter()
    self._parts: dict[str, list[float]] = {}
    self._groups: dict[int, set[float]] = {}
    self._prompts: set[int] = set()
    self._reasons: collections.Counter[str] = collections.Counter()
    self._longest = 0

  def add(
      self, rollouts: Sequence[types.Rollout], seconds: float | None = None
  ) -> None:
    """Adds a shard; `seconds` it took to sample, None if it was there."""
    sums = self._sums
    sums["records"] += len(rollouts)
    if seconds is not None:
      sums["generated"] += len(rollouts)
      sums["seconds"] += seconds
      sums["new_tokens"] += sum(
          len(x.response_tokens) - x.window_start for x in rollouts
      )
    for rollout in rollouts:
      if rollout.role == "train":
        self._add_trained(rollout)

  def _add_trained(self, rollout: types.Rollout) -> None:
    """Adds one record to every mean."""
    length = len(rollout.response_tokens)
    self._prompts.add(rollout.prompt_id)
    self._longest = max(self._longest, length)
    self._reasons[rollout.finish_reason] += 1
    masses = np.exp(rollout.log_kept_mass.astype(np.float64))
    self._sums.update(
        trained=1,
        tokens=length,
        continued=int(rollout.window_start > 0),
        kept_mass=float(masses.sum()),
        logprob=float(rollout.behavior_logprobs.sum(dtype=np.float64)),
    )
    for name, value in rollout.reward_parts.items():
      part = self._parts.setdefault(name, [0.0, 0])
      if not np.isnan(value):
        part[0] += value
        part[1] += 1
    if not (rollout.unfinished or np.isnan(rollout.reward)):
      self._sums.update(graded=1, reward=rollout.reward)
      group = self._groups.setdefault(rollout.group_id, set())
      group.add(np.float32(rollout.reward))

  def finish(self) -> RoundStats:
    """Divides."""
    sums = self._sums
    trained, tokens = sums["trained"], sums["tokens"]
    mixed = sum(len(rewards) > 1 for rewards in self._groups.values())
    return RoundStats(
        records=sums["records"],
        prompts=len(self._prompts),
        reward=_ratio(sums["reward"], sums["graded"]),
        reward_parts={
            name: _ratio(*self._parts[name]) for name in sorted(self._parts)
        },
        mixed=_ratio(mixed, len(self._groups)),
        finished=_ratio(self._reasons["stop"], trained),
        reasons={
            reason: self._reasons[reason]
            for reason in types.FINISH_REASONS
            if self._reasons[reason]
        },
        continued=sums["continued"],
        failed=trained - self._reasons["window"] - sums["graded"],
        length=_ratio(tokens, trained),
        longest=self._longest,
        kept_mass=_ratio(sums["kept_mass"], tokens),
        logprob=_ratio(sums["logprob"], tokens),
        generated=sums["generated"],
        seconds=float(sums["seconds"]),
        tokens_per_second=_ratio(sums["new_tokens"], sums["seconds"]),
    )


def _ratio(total: float, count: float) -> float:
  """Divides; NaN of nothing."""
  return total / count if count else float("nan")
