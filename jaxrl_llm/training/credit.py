"""Who earned the reward: advantages of a rollout batch, targets of a critic."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.data import index as indices
from jaxrl_llm.data import plan
from jaxrl_llm.losses import objective
from jaxrl_llm.training import recorded as recorded_lib
from jaxrl_llm.training import rounds
from jaxrl_llm.training import trainer as trainer_lib


def assign(
    trainer: trainer_lib.Trainer,
    work: rounds.Round,
    batch: plan.RolloutBatch,
    terms: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, np.ndarray]:
  """Returns `advantages`, and with a critic `returns`, in units of reward.

  Args:
    trainer: of the run.
    work: the round.
    batch: of the round, N records.
    terms: log-probs and values by name, an [R] per record.

  Returns:
    By name, float32: a number per record, [N], or one per response token, the
    [R] of the records one after another.

  Raises:
    ValueError: a group lacks the greedy response that the objective reads.
  """
  if trainer.needs.token_rewards:
    return _by_token(trainer, work, batch, terms)
  return {"advantages": _by_response(trainer, work.index, batch)}


def _by_response(trainer, index, batch) -> np.ndarray:
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


def _by_token(trainer, work, batch, terms) -> dict[str, np.ndarray]:
  """As `assign`, where the objective reads token rewards or a critic.

  Token rewards and values exist for the scored records alone, so the groups'
  statistics run over those.
  """
  index, positions = work.index, batch.positions
  recorded = recorded_lib.read(work.records, positions)
  groups = np.unique(index.group_ids[positions], return_inverse=True)[1]
  mask = _padded(recorded.trained_masks)
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
    known["unfinished"] = jnp.asarray(index.unfinished_mask[positions])
  rewards = jnp.asarray(index.rewards[positions])
  whole = recorded.response_masks
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
