"""Advantages of whole rollout batches, computed once, before any update.

Rewards that are not finite (a failed verifier) take no part in any statistic
and get advantage 0. A group left with one finite reward gets 0 as well.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import parts

Array = jax.Array

# Rewards of a group that differ by less than this many ulp are equal.
_EQUAL_ULPS = 4.0


@dataclasses.dataclass(frozen=True)
class Episodes:
  """The N sequences of a rollout batch, baselines left out.

  Attributes:
    scores: float [N], sequence rewards after shaping, NaN where none.
    groups: int32 [N], numbers the groups.
    lengths: float [N], response tokens.
    mask: bool [N, T] response tokens, where token rewards matter; else None.
    token_rewards: float [N, T] on top of the scores, or None.
    greedy_rewards: float [N], reward of the prompt's greedy response, or None.
    values: float [N, T] of the critic, or None.
    unfinished: bool [N], responses that later windows continue, or None.
  """

  scores: Array
  groups: Array
  lengths: Array
  mask: Array | None = None
  token_rewards: Array | None = None
  greedy_rewards: Array | None = None
  values: Array | None = None
  unfinished: Array | None = None

  @property
  def valid(self) -> Array:
    return jnp.isfinite(self.scores)

  def totals(self) -> Array:
    """float [N]: score plus the sum of token rewards; 0 where not valid."""
    totals = jnp.where(self.valid, self.scores, 0.0)
    if self.token_rewards is not None:
      totals += jnp.sum(self.token_rewards, axis=1, where=self.mask)
    return jnp.where(self.valid, totals, 0.0)


@dataclasses.dataclass(frozen=True)
class GroupStatistics:
  """Two-pass statistics of each sequence's group, all [N].

  Attributes:
    centred: R_i − mean; exactly 0 in groups of equal rewards.
    counts: finite rewards in the group.
    squares: Σ_j (R_j − mean)².
  """

  centred: Array
  counts: Array
  squares: Array


def group_statistics(episodes: Episodes) -> GroupStatistics:
  """Centres rewards within groups without cancellation."""
  valid, totals = episodes.valid, episodes.totals()
  size = totals.shape[0]
  groups = jnp.unique(
      episodes.groups, return_inverse=True, size=size, fill_value=0
  )[1].reshape(-1)
  add = lambda x: jax.ops.segment_sum(x, groups, size)[groups]
  low = jax.ops.segment_min(jnp.where(valid, totals, jnp.inf), groups, size)
  high = jax.ops.segment_max(jnp.where(valid, totals, -jnp.inf), groups, size)
  low, high = low[groups], high[groups]
  largest = jnp.maximum(jnp.abs(low), jnp.abs(high))
  ulps = _EQUAL_ULPS * jnp.finfo(totals.dtype).eps
  equal = ~valid | (high - low <= ulps * largest)
  counts = add(valid.astype(totals.dtype))
  offsets = jnp.where(equal, 0.0, totals - jnp.where(valid, low, 0.0))
  means = add(offsets) / jnp.maximum(counts, 1.0)
  centred = jnp.where(equal, 0.0, offsets - means)
  return GroupStatistics(centred, counts, add(jnp.square(centred)))


def _singleton(
    advantages: Array, alone: Array, episodes: Episodes, counts: Array
) -> Array:
  """Puts `alone` where a group has one finite reward, 0 where none."""
  advantages = jnp.where(counts > 1, advantages, alone)
  return jnp.where(episodes.valid, advantages, 0.0)


SINGLETON = dict(
    doc=(
        "advantage of a group of one: zero, or verl's (the reward itself, over"
        " 1 + std_epsilon with group_std)"
    ),
    choices=("zero", "verl"),
)


class Advantage(parts.Part):
  """Base of the parts that give advantages: what each asks for.

  `critic` says which value the critic gives of a token: "state", V(s_t)
  before it was drawn, or "action", Q(s_t, y_t) after; "" for no critic.
  `finished_only` keeps unfinished responses from that critic.
  """

  group_baseline = False
  greedy_baseline = False
  per_token = False
  critic = ""
  finished_only = False


@dataclasses.dataclass(frozen=True)
class GroupStd(Advantage):
  """GRPO: (R − mean) / (std + ε)."""

  std_ddof: int = parts.key(
      1, "degrees of freedom taken off in the group's std", at_least=0,
      at_most=1,
  )
  std_epsilon: float = parts.key(
      1e-6, "added to the group's std, in units of reward", at_least=0.0
  )
  singleton: str = parts.key("zero", **SINGLETON)

  group_baseline = True

  def __call__(self, episodes: Episodes) -> Array:
    group = group_statistics(episodes)
    freedom = jnp.maximum(group.counts - self.std_ddof, 1.0)
    scale = jnp.sqrt(group.squares / freedom) + self.std_epsilon
    varied = group.squares > 0
    centred = jnp.where(
        varied, group.centred / jnp.where(varied, scale, 1.0), 0.0
    )
    alone = 0.0
    if self.singleton == "verl":
      alone = episodes.totals() / (1.0 + self.std_epsilon)
    return _singleton(centred, alone, episodes, group.counts)

  def describe(self) -> str:
    return (
        f"A = (R − group mean) / (group std, ddof {self.std_ddof}, + "
        f"{self.std_epsilon:g}); group of one: {self.singleton}"
    )


@dataclasses.dataclass(frozen=True)
class GroupMean(Advantage):
  """Dr.GRPO: R − mean."""

  singleton: str = parts.key("zero", **SINGLETON)

  group_baseline = True

  def __call__(self, episodes: Episodes) -> Array:
    group = group_statistics(episodes)
    alone = episodes.totals() if self.singleton == "verl" else 0.0
    return _singleton(group.centred, alone, episodes, group.counts)

  def describe(self) -> str:
    return f"A = R − group mean; group of one: {self.singleton}"


@dataclasses.dataclass(frozen=True)
class LeaveOneOut(Advantage):
  """RLOO: R_i − mean of the others = (R_i − mean) G / (G − 1)."""

  singleton: str = parts.key("zero", **SINGLETON)

  group_baseline = True

  def __call__(self, episodes: Episodes) -> Array:
    group = group_statistics(episodes)
    others = jnp.maximum(group.counts - 1.0, 1.0)
    advantages = group.centred * group.counts / others
    alone = episodes.totals() if self.singleton == "verl" else 0.0
    return _singleton(advantages, alone, episodes, group.counts)

  def describe(self) -> str:
    return f"A = R − mean of the group's others; group of one: {self.singleton}"


@dataclasses.dataclass(frozen=True)
class Reward(Advantage):
  """A = R: no baseline."""

  def __call__(self, episodes: Episodes) -> Array:
    return episodes.totals()

  def describe(self) -> str:
    return "A = R, no baseline"


ADVANTAGES = {
    "group_std": GroupStd,
    "group_mean": GroupMean,
    "leave_one_out": LeaveOneOut,
    "reward": Reward,
}


@dataclasses.dataclass(frozen=True)
class Shaping(parts.Part):
  """What is added to rewards before advantages: overlong penalty, KL."""

  overlong_limit: int | None = parts.key(
      None, "response tokens at which the overlong penalty is −1; unset: none",
      at_least=1,
  )
  overlong_buffer: int = parts.key(
      4096, "tokens before overlong_limit over which the penalty grows",
      at_least=1,
  )
  overlong_factor: float = parts.key(
      1.0, "reward taken off at overlong_limit", above=0.0
  )
  overlong_form: str = parts.key(
      "piecewise",
      "beyond overlong_limit: piecewise stays, linear keeps growing",
      choices=("piecewise", "linear"),
  )
  kl_reward_coefficient: float = parts.key(
      0.0,
      "weight of log proximal − log reference taken off each token's reward",
      at_least=0.0,
  )

  def idle_keys(self) -> frozenset[str]:
    if self.overlong_limit is not None:
      return frozenset()
    return frozenset(["overlong_buffer", "overlong_factor", "overlong_form"])

  def overlong(self, lengths: Array) -> Array:
    """float [N] ≤ 0: DAPO (arXiv 2503.14476) Eq 13, of lengths in tokens."""
    free = self.overlong_limit - self.overlong_buffer
    penalty = jnp.minimum((free - lengths) / self.overlong_buffer, 0.0)
    if self.overlong_form == "piecewise":
      penalty = jnp.maximum(penalty, -1.0)
    return penalty * self.overlong_factor

  def describe(self) -> str:
    lines = []
    if self.overlong_limit is not None:
      free = self.overlong_limit - self.overlong_buffer
      lines.append(
          f"R − {self.overlong_factor:g} (n − {free}) / {self.overlong_buffer} "
          f"where n > {free} tokens ({self.overlong_form} beyond "
          f"{self.overlong_limit})"
      )
    if self.kl_reward_coefficient:
      lines.append(
          f"token reward − {self.kl_reward_coefficient:g} (log proximal − log "
          "reference)"
      )
    return "; ".join(lines) or "none"
