"""What a rollout batch needs once, before its first update.

Proximal, reference and top-K log-probs by forward passes, advantages by group
id, and the weights of curation, stored under prepared/ keyed by record id. A
resumed run reads the file: the weights that made it may be gone.
"""

from collections.abc import Sequence
import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.curation import episodes as episodes_lib
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import plan
from jaxrl_llm.losses import objective
from jaxrl_llm.training import attribution
from jaxrl_llm.training import directions
from jaxrl_llm.training import feedback
from jaxrl_llm.training import rounds
from jaxrl_llm.training import scoring
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib

def path_of(workdir: pathlib.Path, position: state_lib.Position):
  """Returns the file of a rollout batch."""
  folder = workdir / "prepared" / f"round_{position.round:04d}"
  return folder / f"batch_{position.batch:04d}.npz"


def obtain(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    workdir: pathlib.Path,
) -> stored.Prepared:
  """Reads the file of the rollout batch that comes next, or makes it.

  Raises:
    ValueError: the file was made with other settings or of other records, or
      it is gone and so are the weights that made it.
  """
  position = state.position
  path = path_of(workdir, position)
  key = {
      "objective": repr(trainer.spec),
      "lineage": state.lineage,
      "seed": trainer.seed,
      "version": position.batch_updates,
  }
  if trainer.curation is not None:
    key["curation"] = repr(trainer.curation)
  if trainer.critic is not None:
    key["critic"] = repr(trainer.critic.settings)
  batch = work.batches[position.batch]
  if path.exists():
    prepared = stored.load(path, key)
    wanted = work.index.record_ids[batch.positions]
    if not np.array_equal(prepared.record_ids, wanted):
      raise ValueError(
          f"{path}: prepared for other records than the rollouts hold; name"
          " the same train.rollouts to resume, or start in a new --workdir."
      )
    return prepared
  if not position.begins_batch:
    raise ValueError(
        f"{path}: missing, and the weights that it was made with have moved"
        " on; restore it, or start in a new --workdir."
    )
  prepared = compute(trainer, state, work, batch)
  if trainer.curation is not None:
    prepared = curated(trainer, state, work, batch, prepared, path)
  if work.weights is not None:
    prepared = _weighed(work, batch, prepared)
  if jax.process_index() == 0:
    stored.save(path, prepared, key)
  return prepared


def compute(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    batch: plan.RolloutBatch,
) -> stored.Prepared:
  """Prepares a rollout batch with the weights that it begins with.

  The round's first batch is always scored, for the step-0 ratio report.

  Args:
    trainer: of the run.
    state: before the first update on the batch.
    work: the round.
    batch: of the round.
  """
  needs, index = trainer.needs, work.index
  terms: dict[str, list[np.ndarray]] = {}
  step = trainer.curation
  if (
      needs.proximal
      or needs.proximal_topk
      or batch is work.batches[0]
      or (step is not None and step.reads_logprobs == "proximal")
  ):
    terms |= _score(trainer, state.params, work, batch, needs.proximal_topk)
  if needs.reference:
    scored = _score(trainer, trainer.reference_params, work, batch, 0)
    terms["reference_logprobs"] = scored["proximal_logprobs"]
  if needs.critic:
    terms |= _values(trainer, state, work, batch)
  flat = {name: np.concatenate(values) for name, values in terms.items()}
  if needs.token_rewards:
    flat |= _token_advantages(trainer, work, batch, terms)
  else:
    flat["advantages"] = _advantages(trainer, index, batch)
  return stored.Prepared(
      index.record_ids[batch.positions],
      index.response_lengths[batch.positions],
      flat,
  )


def curated(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    batch: plan.RolloutBatch,
    prepared: stored.Prepared,
    path: pathlib.Path,
) -> stored.Prepared:
  """Adds the curation's weights, and the scores behind them, to the terms.

  Args:
    trainer: of a run with a curation.
    state: before the first update on the batch.
    work: the round.
    batch: of the round.
    prepared: of `compute`.
    path: of the batch's file.
  """
  step, index = trainer.curation, work.index
  rollouts = [work.records[int(n)] for n in batch.positions]
  terms = prepared.of(prepared.record_ids)
  added = {}
  scores = None
  if step.reads_scores:
    given = (trainer, state, work, batch, prepared)
    direction = directions.obtain(*given, path)
    scores = attribution.scores(*given, direction).episodes
    added["scores"] = scores
  logprobs = terms.get("proximal_logprobs")
  if step.reads_logprobs == "behavior":
    logprobs = [r.behavior_logprobs + r.log_kept_mass for r in rollouts]
  episodes = episodes_lib.Episodes(
      record_ids=index.record_ids[batch.positions],
      group_ids=index.group_ids[batch.positions],
      masks=[indices.trained_mask(rollout) for rollout in rollouts],
      advantages=terms["advantages"],
      solved=_solved(work, batch),
      logprobs=logprobs,
      scores=scores,
      seed=trainer.seed,
      step=state.steps,
  )
  added["weights"] = np.concatenate(step(episodes))
  return dataclasses.replace(prepared, terms={**prepared.terms, **added})


def _weighed(work, batch, prepared) -> stored.Prepared:
  """Multiplies the weights of tokens by those of their prompts."""
  weights = np.repeat(work.weights[batch.positions], prepared.lengths)
  weights = weights * prepared.terms.get("weights", 1.0)
  terms = {**prepared.terms, "weights": weights.astype(np.float32)}
  return dataclasses.replace(prepared, terms=terms)


def _solved(work, batch) -> dict[int, float]:
  """Returns the share of correct responses by group, dropped ones counted."""
  correct: dict[int, list[bool]] = {}
  for place in batch.members:
    group = int(work.index.group_ids[place])
    found = feedback.is_correct(work.records[int(place)])
    correct.setdefault(group, []).append(found)
  return {group: float(np.mean(found)) for group, found in correct.items()}


def _score(trainer, params, work, batch, topk) -> dict[str, list[np.ndarray]]:
  """Returns log-probs, and with topk > 0 the most likely ids and theirs."""

  def score(placed: types.Batch) -> dict[str, jax.Array]:
    scored = trainer.steps.score(params, placed, topk)
    found = {"proximal_logprobs": scored.logprobs}
    if topk:
      found["topk_ids"] = scored.topk_ids
      found["topk_anchor_logprobs"] = scored.topk_logprobs
    return found

  return scoring.over_records(
      score,
      work.records,
      work.index,
      batch.positions,
      trainer.shape,
      trainer.rows,
  )


def _advantages(trainer, index, batch) -> np.ndarray:
  """Returns float32 [N]; dropped members of a group count in its baseline."""
  members = batch.members
  groups = np.unique(index.group_ids[members], return_inverse=True)[1]
  values = trainer.steps.advantages(
      jnp.asarray(index.rewards[members]),
      jnp.asarray(groups, jnp.int32),
      jnp.asarray(index.trained_tokens[members]),
      greedy_rewards=_greedy_rewards(trainer, index, members),
  )
  places = np.searchsorted(members, batch.positions)
  return np.asarray(values, np.float32)[places]


def _values(trainer, state, work, batch) -> dict[str, list[np.ndarray]]:
  """Returns what the critic says of every response token, [R] a record."""
  steps = trainer.critic.steps

  def score(placed: types.Batch) -> dict[str, jax.Array]:
    values = steps.values(state.critic.params, state.params, placed)
    return {"proximal_values": values}

  return scoring.over_records(
      score,
      work.records,
      work.index,
      batch.positions,
      trainer.shape,
      trainer.rows,
  )


def _token_advantages(trainer, work, batch, terms) -> dict[str, np.ndarray]:
  """Returns the records' advantages, float32 [R] one after another.

  With a critic also what it is to learn, `returns`. Token rewards and values
  exist for the scored records alone, so the groups' statistics run over those.
  """
  index, positions = work.index, batch.positions
  rollouts = [work.records[int(n)] for n in positions]
  groups = np.unique(index.group_ids[positions], return_inverse=True)[1]
  mask = _padded([indices.trained_mask(rollout) for rollout in rollouts])
  token_rewards = None
  if trainer.needs.reference and "proximal_logprobs" in terms:
    token_rewards = objective.token_rewards(
        trainer.spec,
        _padded(terms["proximal_logprobs"]),
        _padded(terms["reference_logprobs"]),
        mask,
    )
  known = {"token_rewards": token_rewards}
  if trainer.needs.critic:
    known["values"] = _padded(terms["proximal_values"])
    known["unfinished"] = jnp.array(
        [rollout.finish_reason == "window" for rollout in rollouts]
    )
  rewards = jnp.asarray(index.rewards[positions])
  whole = [rollout.response_mask for rollout in rollouts]
  lengths = jnp.asarray([tokens.sum() for tokens in whole])
  found = {
      "advantages": trainer.steps.advantages(
          rewards,
          jnp.asarray(groups, jnp.int32),
          lengths,
          mask=mask,
          greedy_rewards=_greedy_rewards(trainer, index, positions),
          **known,
      )
  }
  if trainer.needs.critic:
    found["returns"] = trainer.critic.steps.targets(
        rewards, lengths, mask=_padded(whole), **known
    )
  sizes = index.response_lengths[positions]
  return {name: _unpadded(found[name], sizes) for name in found}


def _unpadded(values: jax.Array, sizes: np.ndarray) -> np.ndarray:
  """float32: rows [N, T] cut to their sizes, one after another; or [N]."""
  values = np.asarray(values, np.float32)
  if values.ndim == 1:
    return values
  return np.concatenate([row[:n] for row, n in zip(values, sizes)])


def _greedy_rewards(
    trainer: trainer_lib.Trainer, index: indices.Index, positions: np.ndarray
) -> jax.Array | None:
  """Returns float32 [N], the reward of the greedy response of each group.

  Raises:
    ValueError: a group has none.
  """
  if not trainer.needs.greedy_baseline:
    return None
  rewards = {
      int(index.group_ids[place]): index.rewards[place]
      for place in np.flatnonzero(index.baseline_mask)
  }
  groups = index.group_ids[positions].tolist()
  missing = sum(group not in rewards for group in set(groups))
  if missing:
    raise ValueError(
        f"objective.advantage: {trainer.spec.name} subtracts the reward of a"
        f" greedy response, and {missing} of {len(set(groups))} groups have"
        " none; generate with this objective."
    )
  return jnp.asarray([rewards[group] for group in groups], jnp.float32)


def _padded(arrays: Sequence[np.ndarray]) -> jax.Array:
  """Stacks [R] arrays of several lengths, padded on the right."""
  width = max(map(len, arrays))
  return jnp.stack([jnp.pad(row, (0, width - len(row))) for row in arrays])
