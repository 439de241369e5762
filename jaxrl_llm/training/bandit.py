"""The clip bound of a round as the arm of a bandit (pb_ppo).

Preference-based PPO, arXiv 2312.07624. An arm is a symmetric bound ε of the
ratio clip, drawn once per round; its return is the mean reward of the next
round's rollouts, which the policy it trained has drawn. What a round chose
is written to controls/ROUND before its first update, so a resumed run goes on
with it, and the state is what the files of earlier rounds say.
"""

from collections.abc import Sequence
import dataclasses
import math
import pathlib
from typing import Any

import jax
import numpy as np

from jaxrl_llm.data import atomic
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import parts
from jaxrl_llm.training import settings as settings_lib

NONE = settings_lib.CLIP_BANDITS[0]
KEYS = ("clip_low", "clip_high")
# The official code adds this to its denominators.
_SMALL = 1e-3


@dataclasses.dataclass(frozen=True)
class Bandit:
  """A rule that chooses an arm from what arms returned so far.

  Attributes:
    rule: ucb1, mean returns over the largest and √(ln N / n); or pb_ppo, the
      official code: discounted sums over the largest and √(N / n), which
      prefers the worst arm where all returns are negative.
    arms: number of arms.
    exploration: C, weight of the second term.
    discount: γ of the sums of pb_ppo: Q ← γ Q + R.
  """

  rule: str
  arms: int
  exploration: float
  discount: float = 1.0

  def values(
      self, history: Sequence[tuple[int, float]]
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sums Q and the visits n, float64 [arms].

    Args:
      history: arm and return of each choice, oldest first.
    """
    discount = self.discount if self.rule == "pb_ppo" else 1.0
    sums, visits = np.zeros(self.arms), np.zeros(self.arms)
    for arm, result in history:
      sums[arm] = discount * sums[arm] + result
      visits[arm] += 1
    return sums, visits

  def choose(self, history: Sequence[tuple[int, float]]) -> int:
    """Returns the next arm; the lowest of equal ones."""
    sums, visits = self.values(history)
    if self.rule == "pb_ppo":
      scores = sums / (sums.max() + _SMALL)
      scores += self.exploration * np.sqrt(len(history) / (visits + _SMALL))
      return int(np.argmax(scores))
    if not visits.all():
      return int(np.argmin(visits > 0))
    means = sums / visits
    scores = means / max(np.abs(means).max(), _SMALL)
    scores += self.exploration * np.sqrt(math.log(len(history)) / visits)
    return int(np.argmax(scores))


def check(settings: settings_lib.TrainSettings, spec: objective.Spec) -> None:
  """Refuses a bandit over bounds that the objective does not have.

  Raises:
    ValueError: in one line.
  """
  if settings.clip_bandit == NONE:
    return
  lacking = set(KEYS) - set(parts.keys(spec.trust_region))
  if lacking:
    raise ValueError(
        f"train.clip_bandit: {settings.clip_bandit} chooses the bounds of"
        f" objective.trust_region=clip, {spec.name} has none; choose another"
        " objective, or set it to none."
    )


def controls(
    settings: settings_lib.TrainSettings,
    workdir: pathlib.Path,
    number: int,
    reward: float,
) -> dict[str, float]:
  """Returns the bounds of a round, and writes what was chosen.

  Args:
    settings: of a trainer with a bandit.
    workdir: holds controls/.
    number: of the round.
    reward: mean reward of its rollouts; NaN where no verdict was reached.
  """
  path = path_of(workdir, number)
  if not path.is_file():
    arm = _bandit(settings).choose(_history(workdir, number, reward))
    chosen = {"arm": arm, "bound": settings.clip_arms[arm], "reward": reward}
    if jax.process_index() == 0:
      path.parent.mkdir(parents=True, exist_ok=True)
      atomic.write_json(path, chosen)
  return chosen_controls(workdir, number)


def chosen_controls(workdir: pathlib.Path, number: int) -> dict[str, float]:
  """Returns the bounds that a round chose, from the file of `controls`."""
  return dict.fromkeys(KEYS, _read(path_of(workdir, number))["bound"])


def _bandit(settings: settings_lib.TrainSettings) -> Bandit:
  return Bandit(
      settings.clip_bandit,
      len(settings.clip_arms),
      settings.clip_exploration,
      settings.clip_discount,
  )


def path_of(workdir: pathlib.Path, number: int) -> pathlib.Path:
  """Returns the file of what a round chose."""
  return workdir / "controls" / f"round_{number:05d}.json"


def _history(
    workdir: pathlib.Path, number: int, reward: float
) -> list[tuple[int, float]]:
  """Pairs each earlier round's arm with the reward of the round after it.

  A reward that is not known teaches nothing.
  """
  paths = [path_of(workdir, earlier) for earlier in range(number)]
  chosen = [
      _read(path)
      for path in paths
      if path.is_file()  # A round that was left out chose nothing.
  ]
  rewards = [entry["reward"] for entry in chosen[1:]] + [reward]
  return [
      (entry["arm"], after)
      for entry, after in zip(chosen, rewards)
      if math.isfinite(after)
  ]


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Reads what a round chose."""
  return atomic.read_json(
      path, ("arm", "bound", "reward"), "restore it or begin another --workdir"
  )
