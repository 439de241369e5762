"""What a rollout batch needs once, before its first update.

Proximal, reference and top-K log-probs and a critic's values by forward
passes, advantages (credit.py), and the weights of curation and prompts, stored
under prepared/ keyed by record id. A resumed run reads the file: the weights
that made it may be gone.
"""

import dataclasses
import pathlib

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.curation import episodes as episodes_lib
from jaxrl_llm.data import plan
from jaxrl_llm.training import attribution
from jaxrl_llm.training import credit
from jaxrl_llm.training import directions
from jaxrl_llm.training import feedback
from jaxrl_llm.training import recorded as recorded_lib
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
  flat |= credit.assign(trainer, work, batch, terms)
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
  recorded = recorded_lib.read(work.records, batch.positions)
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
    logprobs = recorded.logprobs
  episodes = episodes_lib.Episodes(
      record_ids=index.record_ids[batch.positions],
      group_ids=index.group_ids[batch.positions],
      masks=recorded.trained_masks,
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
  found = recorded_lib.gather(
      work.records,
      batch.members,
      lambda rollout: {"correct": np.array([feedback.is_correct(rollout)])},
  )
  correct: dict[int, list[bool]] = {}
  groups = work.index.group_ids[batch.members].tolist()
  for group, right in zip(groups, found["correct"]):
    correct.setdefault(group, []).append(bool(right[0]))
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

  return _over(trainer, work, batch, score)


def _values(trainer, state, work, batch) -> dict[str, list[np.ndarray]]:
  """Returns what the critic says of every response token, [R] a record."""
  steps = trainer.critic.steps

  def score(placed: types.Batch) -> dict[str, jax.Array]:
    values = steps.values(state.critic.params, state.params, placed)
    return {"proximal_values": values}

  return _over(trainer, work, batch, score)


def _over(trainer, work, batch, score) -> dict[str, list[np.ndarray]]:
  """Applies a function of micro-batches to the records of a rollout batch."""
  return scoring.over_records(
      score,
      work.records,
      work.index,
      batch.positions,
      trainer.shape,
      trainer.rows,
  )
