"""What a rollout batch needs once, before its first update.

Proximal, reference and top-K log-probs by forward passes, and advantages by
group id, stored under prepared/ keyed by record id. A resumed run reads the
file: the weights that made it may be gone.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import atomic
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import plan
from jaxrl_llm.losses import objective
from jaxrl_llm.training import rounds
from jaxrl_llm.training import scoring
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib

# Terms that may have one entry per record; the others have one per response
# token.
_SEQUENCE_TERMS = ("advantages",)


@dataclasses.dataclass(frozen=True)
class Prepared:
  """Prepared terms of N records.

  Attributes:
    record_ids: int64 [N].
    lengths: int32 [N], response tokens.
    terms: by name of a field of Terms: [N], or the records' [R] or [R, K] one
      after another.
  """

  record_ids: np.ndarray
  lengths: np.ndarray
  terms: Mapping[str, np.ndarray]

  def of(self, record_ids: Sequence[int]) -> dict[str, list[np.ndarray]]:
    """Returns, by term, the entries of some records in their order."""
    places = {int(record): n for n, record in enumerate(self.record_ids)}
    chosen = [places[int(record)] for record in record_ids]
    ends = np.cumsum(self.lengths)
    result = {}
    for name, values in self.terms.items():
      if len(values) == len(self.record_ids) and name in _SEQUENCE_TERMS:
        result[name] = [values[n] for n in chosen]
      else:
        result[name] = [
            values[ends[n] - self.lengths[n] : ends[n]] for n in chosen
        ]
    return result


def save(path: pathlib.Path, prepared: Prepared, key: Mapping) -> None:
  """Writes the file; it is there whole or not at all.

  Args:
    path: ends in .npz.
    prepared: what to write.
    key: JSON object that `load` compares.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  beside = path.with_name(path.name + ".beside")
  with beside.open("wb") as file:
    np.savez(
        file,
        key=np.array(json.dumps(dict(key))),
        record_ids=prepared.record_ids,
        lengths=prepared.lengths,
        **{f"term_{name}": array for name, array in prepared.terms.items()},
    )
  atomic.publish(beside, path)


def load(path: pathlib.Path, key: Mapping | None = None) -> Prepared:
  """Reads a file of `save`; with a key, only one made for the same.

  Raises:
    ValueError: it was made for something else.
  """
  with np.load(path) as stored:
    found = json.loads(str(stored["key"]))
    if key is not None and found != key:
      odd = sorted(
          name
          for name in found.keys() | key.keys()
          if found.get(name) != key.get(name)
      )
      raise ValueError(
          f"{path}: prepared with another {', '.join(odd)}; resume with the"
          " same configuration, or start in a new --workdir."
      )
    terms = {
        name.removeprefix("term_"): stored[name]
        for name in stored.files
        if name.startswith("term_")
    }
    return Prepared(stored["record_ids"], stored["lengths"], terms)


def path_of(workdir: pathlib.Path, position: state_lib.Position):
  """Returns the file of a rollout batch."""
  folder = workdir / "prepared" / f"round_{position.round:04d}"
  return folder / f"batch_{position.batch:04d}.npz"


def obtain(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    workdir: pathlib.Path,
) -> Prepared:
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
  batch = work.batches[position.batch]
  if path.exists():
    prepared = load(path, key)
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
  prepared = compute(trainer, state.params, work, batch)
  if jax.process_index() == 0:
    save(path, prepared, key)
  return prepared


def compute(
    trainer: trainer_lib.Trainer,
    params: types.PyTree,
    work: rounds.Round,
    batch: plan.RolloutBatch,
) -> Prepared:
  """Prepares a rollout batch with the weights that it begins with.

  The round's first batch is always scored, for the step-0 ratio report.

  Args:
    trainer: of the run.
    params: before the first update on the batch.
    work: the round.
    batch: of the round.
  """
  needs, index = trainer.needs, work.index
  terms: dict[str, list[np.ndarray]] = {}
  if needs.proximal or needs.proximal_topk or batch is work.batches[0]:
    terms |= _score(trainer, params, work, batch, needs.proximal_topk)
  if needs.reference:
    scored = _score(trainer, trainer.reference_params, work, batch, 0)
    terms["reference_logprobs"] = scored["proximal_logprobs"]
  flat = {name: np.concatenate(values) for name, values in terms.items()}
  if needs.token_rewards:
    flat["advantages"] = _token_advantages(trainer, work, batch, terms)
  else:
    flat["advantages"] = _advantages(trainer, index, batch)
  return Prepared(
      index.record_ids[batch.positions],
      index.response_lengths[batch.positions],
      flat,
  )


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


def _token_advantages(trainer, work, batch, terms) -> np.ndarray:
  """Returns the records' float32 [R] one after another.

  Token rewards exist for the scored records alone, so the groups' statistics
  run over those.
  """
  index, positions = work.index, batch.positions
  groups = np.unique(index.group_ids[positions], return_inverse=True)[1]
  mask = _padded(
      [indices.trained_mask(work.records[int(n)]) for n in positions]
  )
  token_rewards = None
  if "reference_logprobs" in terms:
    token_rewards = objective.token_rewards(
        trainer.spec,
        _padded(terms["proximal_logprobs"]),
        _padded(terms["reference_logprobs"]),
        mask,
    )
  values = np.asarray(
      trainer.steps.advantages(
          jnp.asarray(index.rewards[positions]),
          jnp.asarray(groups, jnp.int32),
          jnp.asarray(index.trained_tokens[positions]),
          mask=mask,
          token_rewards=token_rewards,
          greedy_rewards=_greedy_rewards(trainer, index, positions),
      ),
      np.float32,
  )
  if values.ndim == 1:
    return values
  lengths = index.response_lengths[positions]
  return np.concatenate([row[:n] for row, n in zip(values, lengths)])


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
