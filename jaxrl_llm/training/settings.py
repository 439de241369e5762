"""Settings of the trainer: the `train` section of a config."""

import dataclasses
import math

from jaxrl_llm.models import policy as policy_lib

SCHEDULES = ("constant", "cosine")
# Bound of what the devices count in int32.
MOST_UPDATES = 2**31
CLIP_BANDITS = ("none", "ucb1", "pb_ppo")


@dataclasses.dataclass(frozen=True)
class TrainSettings:
  """What `configs/base.py` names under `train`; units are explained there.

  Raises:
    ValueError: a value is out of range; the message names the key.
  """

  rollouts: str = ""
  epochs: int = 2
  groups_per_batch: int = 0
  groups_per_minibatch: int = 8
  rows_per_microbatch: int = 8
  tokens_per_row: int = 128
  learning_rate: float = 1e-3
  warmup_updates: int = 0
  schedule: str = "constant"
  total_updates: int | None = None
  beta1: float = 0.9
  beta2: float = 0.95
  epsilon: float = 1e-8
  weight_decay: float = 0.0
  max_grad_norm: float = 1.0
  max_bad_updates: int = 5
  max_staleness: int | None = None
  keep_uniform_groups: bool = False
  reference: str = ""
  reference_dtype: str | None = None
  clip_bandit: str = "none"
  clip_arms: tuple[float, ...] = (0.02, 0.116, 0.212, 0.308, 0.404, 0.5)
  clip_exploration: float = 5.0
  clip_discount: float = 0.99
  checkpoint_every: int = 100
  checkpoints_kept: int = 2

  def __post_init__(self):
    for key in (
        "epochs",
        "groups_per_minibatch",
        "rows_per_microbatch",
        "tokens_per_row",
        "max_bad_updates",
        "checkpoint_every",
        "checkpoints_kept",
    ):
      _require(self, key, "at least 1", lambda value: value >= 1)
    for key in (
        "groups_per_batch",
        "weight_decay",
        "max_staleness",
        "learning_rate",
    ):
      _require(self, key, "0 or more", lambda value: 0 <= value < math.inf)
    _require(
        self, "warmup_updates", "0 ≤ value < 2³¹",
        lambda value: 0 <= value < MOST_UPDATES,
    )
    for key in ("epsilon", "max_grad_norm"):
      _require(self, key, "more than 0", lambda value: value > 0)
    for key in ("beta1", "beta2"):
      _require(self, key, "0 ≤ value < 1", lambda value: 0 <= value < 1)
    _require(
        self, "schedule", f"one of {SCHEDULES}", lambda name: name in SCHEDULES
    )
    _require(
        self, "reference_dtype", f"one of {policy_lib.STORAGES}",
        lambda name: name in policy_lib.STORAGES,
    )
    _require(
        self, "clip_bandit", f"one of {CLIP_BANDITS}",
        lambda name: name in CLIP_BANDITS,
    )
    _require(
        self, "clip_arms", "two or more bounds above 0, ascending",
        lambda arms: len(arms) > 1 and 0 < arms[0] and arms[-1] < math.inf
        and all(a < b for a, b in zip(arms, arms[1:])),
    )
    _require(
        self, "clip_exploration", "0 or more",
        lambda value: 0 <= value < math.inf,
    )
    _require(
        self, "clip_discount", "0 < value ≤ 1", lambda value: 0 < value <= 1
    )
    if self.schedule == "cosine" and self.total_updates is None:
      raise ValueError(
          "train.total_updates: expected a number of updates for"
          " train.schedule=cosine, found none; set it."
      )
    _require(
        self,
        "total_updates",
        f"more than train.warmup_updates={self.warmup_updates}, less than 2³¹",
        lambda value: self.warmup_updates < value < MOST_UPDATES,
    )


def _require(settings: TrainSettings, key: str, expected: str, holds):
  """Raises the one-line error of a key unless it is unset or holds."""
  value = getattr(settings, key)
  if value is not None and not holds(value):
    raise ValueError(
        f"train.{key}: expected {expected}, found {value!r}; correct it."
    )
