"""Decides, before anything is read for training, what is read and when.

A plan depends on the index, the settings and the seed alone, so every host
makes the same one. The way down: `index.Index` → `select` → `rollout_batches` →
`minibatches`. A position is the place of a record in the concatenation of the
folders.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import index as indices


@dataclasses.dataclass(frozen=True)
class Selection:
  """What is left to train on.

  Attributes:
    positions: int64, records to train on, ascending.
    members: int64, records whose rewards enter the statistics of their group:
      `positions` and those too stale, too long, without trained tokens or
      beyond the limit of a group, ascending; only of groups that have a record
      to train on.
    drops: number of dropped records by reason.
  """

  positions: np.ndarray
  members: np.ndarray
  drops: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class RolloutBatch:
  """What is prepared together, once, before the first update on it.

  Attributes:
    number: of the batch; seeds its order.
    positions: int64, records to train on, ascending.
    members: as in Selection.
  """

  number: int
  positions: np.ndarray
  members: np.ndarray


def select(
    index: indices.Index,
    *,
    tokens_per_row: int,
    keep_uniform_groups: bool = False,
    group_limit: int | None = None,
    max_staleness: int | None = None,
    policy_version: int | None = None,
    lineage: str | None = None,
    ignored_mask: np.ndarray | None = None,
) -> Selection:
  """Drops what cannot or should not be trained on, and counts it.

  A record counts under the first reason that applies: baseline, error,
  nan_reward, masked (no trained token), stale, long, ignored; those that remain
  of a group of two or more whose members' rewards are all equal count under
  uniform, and what is more of a group than `group_limit` under limit. A group
  of one stays: whether it can be used is the objective's to say
  (`index.Index.group_sizes`).

  Args:
    index: of all records.
    tokens_per_row: longest sequence that fits a row.
    keep_uniform_groups: keep groups whose rewards are all equal.
    group_limit: records of a group to train on at most, see `_within_limit`;
      None for no limit.
    max_staleness: largest policy_version − oldest version; None for no limit.
    policy_version: updates of the policy that will be trained; read with
      max_staleness only.
    lineage: of that policy.
    ignored_mask: bool [M], records that the loss takes no notice of; None
      where it takes notice of all.

  Returns:
    What is left. That is nothing where the rewards of every group that could
    be trained on are equal, or all that could be is ignored: such a round
    teaches nothing and is no error.

  Raises:
    ValueError: staleness across lineages, or all is dropped for other reasons.
  """
  staleness = _staleness(index, max_staleness, policy_version, lineage)
  reasons = {
      "baseline": index.baseline_mask,
      "error": index.error_mask,
      "nan_reward": ~np.isfinite(index.rewards),
  }
  member_mask = ~np.logical_or.reduce(list(reasons.values()))
  reasons["masked"] = index.trained_tokens == 0
  reasons["stale"] = staleness
  reasons["long"] = index.lengths > tokens_per_row
  if ignored_mask is not None:
    reasons["ignored"] = ignored_mask
  uniform_mask = _uniform_groups(index, member_mask)
  reasons["uniform"] = uniform_mask & (not keep_uniform_groups)
  kept_mask = np.ones(len(index), bool)
  drops = {}
  for reason, mask in reasons.items():
    drops[reason] = int(np.sum(kept_mask & mask))
    kept_mask &= ~mask
  if group_limit is not None:
    chosen_mask = _within_limit(index, kept_mask, group_limit)
    drops["limit"] = int(np.sum(kept_mask & ~chosen_mask))
    kept_mask = chosen_mask
  by_design = drops["uniform"] + drops.get("ignored", 0)
  if not kept_mask.any() and not by_design:
    counts = ", ".join(f"{name} {count}" for name, count in drops.items())
    raise ValueError(
        f"expected records to train on, all {len(index)} were dropped"
        f" ({counts}); see train.tokens_per_row and train.max_staleness."
    )
  living = np.isin(index.group_ids, index.group_ids[kept_mask])
  return Selection(
      np.flatnonzero(kept_mask), np.flatnonzero(member_mask & living), drops
  )


def rollout_batches(
    index: indices.Index,
    selection: Selection,
    *,
    seed: int,
    groups_per_batch: int = 0,
    first_number: int = 0,
) -> list[RolloutBatch]:
  """Cuts the selection into rollout batches of whole groups.

  Args:
    index: of all records.
    selection: of `select`.
    seed: of the run; decides which groups come first.
    groups_per_batch: groups a batch, the last may have fewer; 0 takes all.
      An empty selection gives no batch.
    first_number: number of the first batch (the round, where there is one).
  """
  groups = _ordered(index, selection.positions, "batches", seed)
  size = groups_per_batch or max(len(groups), 1)
  batches = []
  for start in range(0, len(groups), size):
    chosen = groups[start : start + size]
    positions, members = (
        array[np.isin(index.group_ids[array], chosen)]
        for array in (selection.positions, selection.members)
    )
    batches.append(
        RolloutBatch(first_number + len(batches), positions, members)
    )
  return batches


def minibatches(
    index: indices.Index,
    batch: RolloutBatch,
    *,
    seed: int,
    epoch: int,
    groups_per_minibatch: int,
) -> list[np.ndarray]:
  """Cuts one epoch over a rollout batch into mini-batches of whole groups.

  Every record comes exactly once. The mini-batches hold at most
  `groups_per_minibatch` groups and their sizes differ by at most one: a
  remainder of one group would make a whole update of it.

  Returns:
    Positions of each mini-batch, groups in order, int64.
  """
  if groups_per_minibatch < 1:
    raise ValueError(
        "train.groups_per_minibatch: expected ≥ 1, found"
        f" {groups_per_minibatch}."
    )
  groups = _ordered(
      index, batch.positions, "epoch", seed, batch.number, epoch
  )
  members: dict[int, list[int]] = {group: [] for group in groups}
  for position in batch.positions.tolist():
    members[int(index.group_ids[position])].append(position)
  count = max(1, -(-len(groups) // groups_per_minibatch))
  parts = np.array_split(np.asarray(groups, np.int64), count)
  return [
      np.concatenate([members[group] for group in part.tolist()])
      for part in parts
      if part.size
  ]


def _staleness(
    index: indices.Index,
    max_staleness: int | None,
    policy_version: int | None,
    lineage: str | None,
) -> np.ndarray:
  """Returns bool [M], True on records that are too old."""
  if max_staleness is None:
    return np.zeros(len(index), bool)
  if policy_version is None or lineage is None:
    raise ValueError(
        "train.max_staleness: needs the trained policy's version and lineage;"
        " unset it."
    )
  if index.lineage_names != (lineage,):
    raise ValueError(
        f"train.max_staleness: the policy is of lineage {lineage!r}, the"
        f" rollouts of {list(index.lineage_names)}, whose versions do not"
        " compare; unset it."
    )
  return policy_version - index.oldest_versions > max_staleness


def _uniform_groups(
    index: indices.Index, member_mask: np.ndarray
) -> np.ndarray:
  """Returns bool [M]: two or more members, all with the same reward."""
  groups, group = np.unique(index.group_ids, return_inverse=True)
  rewards = np.where(member_mask, index.rewards, np.nan)
  lowest = np.full(len(groups), np.inf, np.float32)
  highest = np.full(len(groups), -np.inf, np.float32)
  np.fmin.at(lowest, group, rewards)
  np.fmax.at(highest, group, rewards)
  sizes = np.bincount(group, weights=member_mask, minlength=len(groups))
  return ((lowest == highest) & (sizes > 1))[group]


def _within_limit(
    index: indices.Index, kept_mask: np.ndarray, limit: int
) -> np.ndarray:
  """Chooses at most `limit` records of each group; returns bool [M].

  Half of them have rewards above the middle of the group's lowest and highest,
  half have not; where one kind is too few, the other fills up. Of a kind, the
  first are taken (2510.04996, the down-sampling of Reinforce-Ada).
  """
  chosen_mask = np.zeros(len(index), bool)
  groups: dict[int, list[int]] = {}
  for position in np.flatnonzero(kept_mask).tolist():
    groups.setdefault(int(index.group_ids[position]), []).append(position)
  for members in groups.values():
    rewards = index.rewards[members]
    high_mask = rewards > (rewards.min() + rewards.max()) / 2
    high, low = (np.array(members)[mask] for mask in (high_mask, ~high_mask))
    taken = max(min(limit // 2, len(high)), limit - len(low))
    chosen_mask[high[:taken]] = True
    chosen_mask[low[: limit - min(taken, len(high))]] = True
  return chosen_mask


def _ordered(
    index: indices.Index, positions: np.ndarray, *stream: str | int
) -> list[int]:
  """Orders the groups of some records by a hash of stream and group id.

  The order of two groups depends on neither the other groups nor on numpy's
  generators, which may change between releases.
  """
  groups = np.unique(index.group_ids[positions]).tolist()
  return sorted(
      groups, key=lambda group: fingerprints.of_parts(*stream, group)
  )
