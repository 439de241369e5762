"""Why a round's records cannot be trained on; each raises ValueError."""

from collections.abc import Sequence

import numpy as np

from jaxrl_llm.data import index as indices
from jaxrl_llm.data import shards
from jaxrl_llm.losses import objective
from jaxrl_llm.training import state as state_lib


def hidden_staleness(
    spec: objective.Spec, stale_mask: np.ndarray, batches: int
) -> None:
  """Refuses a proximal anchor that would hide staleness."""
  if objective.requirements(spec).correction_named:
    return
  if stale_mask.any():
    why = (
        f"{int(stale_mask.sum())} of {len(stale_mask)} records were drawn by"
        " other weights than the trainer's"
    )
  elif batches > 1:
    why = f"the last {batches - 1} of {batches} rollout batches will be stale"
  else:
    return
  raise ValueError(
      f"objective.correction: {why}, which the proximal anchor of"
      f" {spec.name} hides; set it to tis, icepop, decoupled, rejection,"
      " bypass or none."
  )


def foreign_versions(
    spec: objective.Spec,
    index: indices.Index,
    stale_mask: np.ndarray,
    position: state_lib.Position,
    lineage: str,
) -> None:
  """Refuses versions that do not compare, where the objective counts them.

  Another lineage's compare where its weights are the trainer's, at the same
  version: two runs that start from the same model.
  """
  if not objective.requirements(spec).versions:
    return
  others = set(index.lineage_names) - {lineage}
  odd_mask = stale_mask | (index.oldest_versions != position.round_updates)
  if others and odd_mask.any():
    raise ValueError(
        "objective.proximal: loglinear counts the updates since a token was"
        f" drawn, but the policy is of lineage {lineage!r} and rollouts of"
        f" {sorted(others)}, whose versions do not compare; set it to"
        " recomputed."
    )


def groups_of_one(index: indices.Index, spec: objective.Spec) -> None:
  """Refuses groups that were generated with one sample."""
  if not objective.requirements(spec).group_baseline:
    return
  sampled = np.flatnonzero(~index.baseline_mask)
  alone = sampled[index.group_sizes(sampled) == 1]
  if alone.size:
    raise ValueError(
        f"generation.samples_per_prompt: {alone.size} groups have one sample"
        f" (prompt {index.prompt_ids[alone[0]]}), and {spec.name} compares"
        " samples within a group; generate at least 2, or choose an objective"
        " that does not (objective.advantage=reward, or objective.name=sft)."
    )


def unfinished(index: indices.Index, spec: objective.Spec) -> None:
  """Refuses responses without a reward, where the objective needs one."""
  count = int(np.sum(index.unfinished_mask))
  if count and not objective.requirements(spec).bootstraps:
    raise ValueError(
        f"objective.name: {count} of {len(index)} responses are unfinished"
        f" (generation.window) and have no reward, which {spec.name} needs;"
        " choose an objective whose critic stands in for it, such as tppo."
    )


def missing_topk(
    folders: Sequence[shards.Folder], spec: objective.Spec
) -> None:
  """Refuses shards that lack the behaviour top-K that the objective reads."""
  wanted = objective.requirements(spec).behavior_topk
  for folder in folders:
    if folder.metadata.topk < wanted:
      raise ValueError(
          f"{folder.path}: expected the top {wanted} ids of each token for"
          f" {spec.name}, found {folder.metadata.topk}; generate with"
          f" sampling.record_topk={wanted}."
      )


def mixed_topk(folders: Sequence[shards.Folder]) -> None:
  """Refuses shards from which hosts would make arrays of several shapes."""
  first, *others = folders
  for folder in others:
    if folder.metadata.topk != first.metadata.topk:
      raise ValueError(
          f"{folder.path}: expected the top {first.metadata.topk} ids of each"
          f" token, as in {first.path}, found {folder.metadata.topk}; generate"
          " with one sampling.record_topk, or train on one host."
      )
