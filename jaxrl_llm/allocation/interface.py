"""What every way to share out rollouts has in common.

An allocator is a frozen dataclass whose fields are keys under `allocation.`.
It looks at prompts by their place 0 … M − 1 in the pool, and at the run
through the feedback of finished rounds only:

  state = allocator.start(size, budget, seed)
  counts = allocator.propose(state, budget, order)     # before round k
  state = allocator.observe(state, outcomes)          # after round k

`propose` changes nothing: asked again, it answers the same.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Budget:
  """What a run means to spend.

  Attributes:
    prompts: distinct prompts of a round.
    samples: responses per prompt.
    rounds: of the run.
  """

  prompts: int
  samples: int
  rounds: int

  @property
  def responses(self) -> int:
    """Responses of a round."""
    return self.prompts * self.samples


@dataclasses.dataclass(frozen=True)
class Outcomes:
  """What a finished round showed, per prompt of the pool.

  Attributes:
    samples: int [M], responses generated; 0 where the prompt was left out.
    scored: int [M], those with a reward.
    correct: int [M], those that were right.
    gradients: float [M], mean over the right responses of a norm of
      ∇ log π(response), up to a common factor; 0 without a right response.
    confidence: float [M], exp of the mean over responses of their mean
      log-prob per token under the behaviour policy, 0 where left out; None
      where nobody reads it.
    sizes: float [M], mean |A| of the responses, 0 of groups that were not
      trained on; None where nobody reads it.
  """

  samples: np.ndarray
  scored: np.ndarray
  correct: np.ndarray
  gradients: np.ndarray
  confidence: np.ndarray | None = None
  sizes: np.ndarray | None = None

  @classmethod
  def of(
      cls, groups: Iterable[Mapping[str, Any]], prompt_ids: Sequence[int]
  ) -> "Outcomes":
    """Reads the groups of a feedback file.

    Args:
      groups: objects with prompt_id, samples, scored, correct, mean_gradient,
        confidence and mean_abs_advantage; those of other prompts are left out.
      prompt_ids: of the pool, in its order.
    """
    place = {prompt_id: number for number, prompt_id in enumerate(prompt_ids)}
    counts = np.zeros((3, len(place)), np.int64)
    gradients, confidence, sizes = np.zeros((3, len(place)))
    for group in groups:
      index = place.get(group["prompt_id"])
      if index is None:
        continue
      counts[:, index] = group["samples"], group["scored"], group["correct"]
      gradients[index] = group["mean_gradient"]
      confidence[index] = group["confidence"]
      sizes[index] = group["mean_abs_advantage"]
    return cls(*counts, gradients, confidence, sizes)


@dataclasses.dataclass(frozen=True)
class State:
  """What an allocator remembers; subclasses add numbers and arrays.

  Attributes:
    rounds_seen: rounds whose outcomes it has observed.
  """

  rounds_seen: int


class Allocator:
  """Base of all; subclasses are frozen dataclasses of keys.

  Attributes:
    state: kind of its state.
    learns: whether it reads feedback.
    weighs: whether prompts have weights in the loss.
  """

  state: type[State] = State
  learns: bool = True
  weighs: bool = False

  @property
  def group_limit(self) -> int | None:
    """Responses of a prompt that enter the update at most; None: all."""
    return None

  def check_budget(self, budget: Budget) -> None:
    """Raises ValueError where the keys do not fit the budget; one line."""

  def smallest_group(self, budget: Budget) -> tuple[str, int]:
    """Names the key that bounds a group from below, and the bound."""
    return "generation.samples_per_prompt", budget.samples

  def start(self, size: int, budget: Budget, seed: int) -> State:
    """Returns the state before the first round.

    Args:
      size: M, prompts of the pool.
      budget: of the run.
      seed: of the run.
    """
    raise NotImplementedError

  def propose(
      self, state: State, budget: Budget, order: np.ndarray
  ) -> np.ndarray:
    """Returns int [M], responses for each prompt in the coming round.

    Args:
      state: after all rounds before.
      budget: of the run.
      order: int [M], the pool in the order in which this round would pose it;
        the first `budget.prompts` are the round's by turn.
    """
    raise NotImplementedError

  def loss_weights(
      self, state: State, budget: Budget, order: np.ndarray
  ) -> np.ndarray:
    """Returns float [M], what the loss of each posed prompt is multiplied by.

    Args:
      state: as in `propose`.
      budget: as in `propose`.
      order: as in `propose`.
    """
    del state, budget
    return np.ones(len(order))

  def observe(self, state: State, outcomes: Outcomes) -> State:
    """Returns the state after the round that `state` proposed for."""
    raise NotImplementedError


def to_json(state: State) -> dict[str, Any]:
  """Turns a state into a JSON object; floats survive exactly."""
  return {
      name: value.tolist() if isinstance(value, np.ndarray) else value
      for name, value in vars(state).items()
  }


def from_json(kind: type[State], content: Mapping[str, Any]) -> State:
  """Turns the JSON object of `to_json` back into a state."""
  return kind(**{
      name: np.asarray(value) if isinstance(value, list) else value
      for name, value in content.items()
  })


def fill(
    order: np.ndarray, limits: np.ndarray | int, total: int, size: int
) -> np.ndarray:
  """Gives each prompt in `order` its limit while `total` lasts.

  Args:
    order: int [n], places in the pool.
    limits: most for each of them, int [n] or one number.
    total: most for all together.
    size: M.

  Returns:
    int [M]; the last one served may get a part of its limit.
  """
  limits = np.broadcast_to(limits, order.shape)
  before = np.cumsum(limits) - limits
  counts = np.zeros(size, np.int64)
  counts[order] = np.clip(total - before, 0, limits)
  return counts


def least_visited(visits: np.ndarray, order: np.ndarray) -> np.ndarray:
  """Sorts `order` by visits, ascending; equal ones stay in order."""
  return order[np.argsort(visits[order], kind="stable")]
