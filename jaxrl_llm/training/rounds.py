"""Opens a round's folders and plans their reading."""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib

import jax
import numpy as np

from jaxrl_llm import plurals
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import plan
from jaxrl_llm.data import reading
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards
from jaxrl_llm.losses import objective
from jaxrl_llm.training import opening
from jaxrl_llm.training import refusals
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib

# Why plan.select drops a record that was sampled to be trained on, in words.
REASONS = {
    "error": "that ended in an error",
    "nan_reward": "whose reward failed",
    "masked": "without a trained token",
    "stale": "staler than train.max_staleness",
    "long": "longer than train.tokens_per_row (raise it to keep them)",
    "ignored": "whose reward is at most objective.imitate_above",
    "uniform": "of groups with equal rewards",
    "limit": "beyond the limit of a group",
}


@dataclasses.dataclass(frozen=True)
class Round:
  """What one round trains on, the same on every host and every resume.

  Attributes:
    records: by position.
    index: of all records.
    selection: records to train on, and drops by reason.
    batches: rollout batches in order.
    stale_mask: bool over positions, drawn by other weights than those the
      round begins with; all False where a round is resumed in its middle.
    weights: float64 over positions, of the prompt (see
      schema.PROMPT_WEIGHTS); None where all are 1.
  """

  records: reading.Records
  index: indices.Index
  selection: plan.Selection
  batches: Sequence[plan.RolloutBatch]
  stale_mask: np.ndarray
  weights: np.ndarray | None

  def minibatches(
      self, batch: plan.RolloutBatch, groups_per_minibatch: int
  ) -> int:
    """Returns the mini-batches of one epoch over a batch."""
    groups = len(np.unique(self.index.group_ids[batch.positions]))
    return -(-groups // groups_per_minibatch)

  def ends_with(
      self, position: state_lib.Position, epochs: int, minibatches: int
  ) -> bool:
    """Whether a position, behind some mini-batch, is behind the last one.

    Args:
      position: of the trainer.
      epochs: over each batch.
      minibatches: of an epoch over the position's batch.
    """
    return (
        position.batch == len(self.batches) - 1
        and position.epoch == epochs - 1
        and position.minibatch == minibatches
    )


def numbers(work: Round, number: int) -> dict[str, float]:
  """Returns what the metrics say of a round: rewards, and drops by reason.

  `reward` is over all scored records, dropped ones included; NaN of none.
  """
  index = work.index
  sampled = ~index.baseline_mask
  scored = sampled & index.scored_mask
  reward = index.rewards[scored].mean() if scored.any() else np.nan
  values = {
      "round": number,
      "reward": float(reward),
      "reward_failed": int(np.sum(sampled & np.isnan(index.rewards))),
      "unfinished": int(np.sum(index.unfinished_mask)),
      "continued": int(np.sum(index.window_starts > 0)),
  }
  for reason, count in work.selection.drops.items():
    values[f"dropped/{reason}"] = count
  return values


def tally(work: Round) -> str:
  """Says how many records and groups teach, and why the others do not."""
  index, drops = work.index, work.selection.drops
  sampled = ~index.baseline_mask
  groups = lambda chosen: len(np.unique(index.group_ids[chosen]))
  text = (
      f"{len(work.selection.positions)} of"
      f" {plurals.count(int(np.sum(sampled)), 'record')} teach, of"
      f" {groups(work.selection.positions)} of"
      f" {plurals.count(groups(sampled), 'group')}"
  )
  dropped = ", ".join(
      f"{drops[reason]} {said}"
      for reason, said in REASONS.items()
      if drops.get(reason, 0)
  )
  return f"{text}; dropped: {dropped}." if dropped else f"{text}."


def idle_reason(work: Round) -> str:
  """Says why a round without rollout batches has none."""
  ignored = work.selection.drops.get("ignored", 0)
  if ignored:
    return (
        f"no response to imitate: the rewards of {ignored} are at most"
        " objective.imitate_above."
    )
  return "no group with unequal rewards to learn from."


def batch_numbers(
    work: Round,
    position: state_lib.Position,
    settings: settings_lib.TrainSettings,
) -> dict[str, float]:
  """Returns what the metrics say of a rollout batch that comes next.

  `off_policy_updates` is the off-policy degree: updates per rollout batch.
  `staleness` counts updates from a record's oldest token to the batch's first
  update; it means nothing on shards of another lineage.
  """
  index, batch = work.index, work.batches[position.batch]
  lag = position.batch_updates - index.oldest_versions[batch.positions]
  groups, sizes = np.unique(
      index.group_ids[batch.members], return_counts=True
  )
  return numbers(work, position.round) | {
      "batch": position.batch,
      "records": len(batch.positions),
      "groups": len(groups),
      "groups_of_one": int(np.sum(sizes == 1)),
      "off_policy_updates": settings.epochs
      * work.minibatches(batch, settings.groups_per_minibatch),
      "staleness_mean": float(lag.mean()),
      "staleness_max": int(lag.max()),
  }


def open_round(
    folders: Sequence[pathlib.Path | str],
    spec: objective.Spec,
    settings: settings_lib.TrainSettings,
    *,
    tokenizer_fingerprint: str | None,
    seed: int,
    position: state_lib.Position,
    lineage: str,
    fingerprint: Callable[[], str],
    group_limit: int | None = None,
) -> Round:
  """Opens and plans.

  Args:
    folders: all folders of the round, finished.
    spec: the objective.
    settings: of the trainer.
    tokenizer_fingerprint: of the model that is trained.
    seed: of the run.
    position: of the trainer.
    lineage: of the trainer.
    fingerprint: of the trainer's weights; called only at the beginning of a
      round whose rollouts are of another lineage.
    group_limit: records of a group to train on at most; None for no limit.

  Raises:
    ValueError: the folders do not fit the model, the objective or each other.
  """
  opened, index = opening.open_folders(folders, tokenizer_fingerprint)
  refusals.missing_topk(opened, spec)
  if jax.process_count() > 1:
    refusals.mixed_topk(opened)
  refusals.groups_of_one(index, spec)
  refusals.unfinished(index, spec)
  compares = objective.requirements(spec).group_baseline
  selection = plan.select(
      index,
      tokens_per_row=settings.tokens_per_row,
      # Equal rewards mean no advantage only within a group's own baseline.
      keep_uniform_groups=settings.keep_uniform_groups or not compares,
      group_limit=group_limit,
      max_staleness=settings.max_staleness,
      policy_version=position.round_updates,
      lineage=lineage,
      ignored_mask=_ignored(index, spec),
  )
  batches = plan.rollout_batches(
      index,
      selection,
      seed=seed,
      groups_per_batch=settings.groups_per_batch,
      first_number=position.round,
  )
  stale_mask = np.zeros(len(index), bool)
  if position.begins_round:
    stale_mask = _stale(opened, index, position, lineage, fingerprint)
    refusals.hidden_staleness(
        spec, stale_mask[selection.positions], len(batches)
    )
    refusals.foreign_versions(spec, index, stale_mask, position, lineage)
  return Round(
      reading.Records(opened), index, selection, batches, stale_mask,
      _prompt_weights(opened, index),
  )


def _prompt_weights(
    folders: Sequence[shards.Folder], index: indices.Index
) -> np.ndarray | None:
  """Reads what the allocation wanted each prompt of a folder to weigh."""
  ids = index.prompt_ids.tolist()
  parts = []
  start = 0
  for folder in folders:
    known = folder.metadata.config.get(schema.PROMPT_WEIGHTS, {})
    own = ids[start : start + len(folder)]
    start += len(folder)
    parts.append([known.get(str(prompt_id), 1.0) for prompt_id in own])
  weights = np.concatenate(parts)
  return weights if np.any(weights != 1.0) else None


def _ignored(index: indices.Index, spec: objective.Spec) -> np.ndarray | None:
  """Returns bool [M], True where the objective leaves a response out."""
  if not spec.selects:
    return None
  values = objective.advantages(
      spec, index.rewards, np.arange(len(index)), index.trained_tokens
  )
  return np.asarray(values) <= 0


def _stale(
    folders: Sequence[shards.Folder],
    index: indices.Index,
    position: state_lib.Position,
    lineage: str,
    fingerprint: Callable[[], str],
) -> np.ndarray:
  """Returns bool [M], True where other weights drew a record.

  A folder of another lineage is fresh if its weights are the trainer's to the
  bit: two runs that start from the same model.
  """
  own = None
  parts = []
  start = 0
  for folder in folders:
    versions = index.oldest_versions[start : start + len(folder)]
    start += len(folder)
    current = position.round_updates
    if folder.metadata.lineage != lineage:
      own = own or fingerprint()
      same = folder.metadata.weights_fingerprint == own
      current = folder.metadata.policy_version if same else None
    if current is None:
      parts.append(np.ones(len(folder), bool))
    else:
      parts.append(versions != current)
  return np.concatenate(parts)
