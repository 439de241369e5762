"""One mini-batch: pack, fix the denominators, split, add up."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import packing
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import scoring
from jaxrl_llm.training import step
from jaxrl_llm.training import trainer as trainer_lib

# Keeps the trainer's noise apart from that of the sampler.
_NOISE_STREAM = 0x7261696E


@dataclasses.dataclass(frozen=True)
class Minibatch:
  """A mini-batch on the host, split into micro-batches.

  Attributes:
    pieces: batch and per-token weights of each micro-batch, numpy.
    tokens: tokens that fill the rows, prompts included; a shared prompt
      counts once.
    known: numbers for the metrics.
  """

  pieces: Sequence[tuple[types.Batch, Mapping[str, np.ndarray]]]
  tokens: int
  known: Mapping[str, float]


def build(
    trainer: trainer_lib.Trainer,
    rollouts: Sequence[types.Rollout],
    terms: Mapping[str, Sequence[np.ndarray]],
) -> Minibatch:
  """Packs and splits a mini-batch.

  Args:
    trainer: of the run.
    rollouts: N records.
    terms: prepared terms by name, an entry per record.
  """
  shape = trainer.shape
  rows = packing.pack_rollouts(rollouts, shape.tokens)
  count = -(-len(rows) // shape.rows)
  padded = shape.rows * 2 ** (count - 1).bit_length()
  batch = packing.assemble(
      rollouts,
      rows + [[]] * (padded - len(rows)),
      tokens_per_row=shape.tokens,
      rows_per_microbatch=shape.rows,
      prepared=terms,
  )
  tokens = int(np.count_nonzero(batch.segment_ids))
  known = {
      "reward": float(np.mean([rollout.reward for rollout in rollouts])),
      "response_length": float(
          np.mean([rollout.response_tokens.size for rollout in rollouts])
      ),
      "sequences": len(rollouts),
      "microbatches": count,
      "fill": tokens / (count * shape.rows * shape.tokens),
  }
  return Minibatch(split(trainer, batch, count), tokens, known)


def split(
    trainer: trainer_lib.Trainer, batch: types.Batch, count: int
) -> list[tuple[types.Batch, Mapping[str, np.ndarray]]]:
  """Fixes the denominators over a whole mini-batch, and cuts its rows.

  Args:
    trainer: of the run.
    batch: numpy; a power of two of micro-batches, so that the function of the
      denominators compiles for a handful of shapes (that of a micro-batch for
      one).
    count: micro-batches to cut off; rows beyond are empty.
  """
  batch = _with_topk(batch, trainer)
  whole = dataclasses.replace(batch.terms, controls=_controls(trainer))
  weights = jax.device_get(trainer.steps.denominators(whole))
  rows = trainer.shape.rows

  def cut(start: int):
    return jax.tree.map(lambda a: a[start : start + rows], (batch, weights))

  return [cut(m * rows) for m in range(count)]


def accumulate(
    trainer: trainer_lib.Trainer,
    params: types.PyTree,
    minibatch: Minibatch,
    number: int,
    version: types.Array | None = None,
) -> step.Totals:
  """Dispatches the sums over all micro-batches.

  Args:
    trainer: of the run.
    params: live parameters.
    minibatch: from `build`.
    number: updates applied or skipped before; seeds the noise.
    version: int32 scalar, updates applied before; read where the objective
      asks for versions.
  """
  steps = trainer.steps
  sums = None
  if trainer.needs.statistics:
    for batch, _ in _placed(trainer, minibatch, number, version):
      if sums is None:
        sums = steps.start_sums(params, batch)
      sums = steps.add_sums(params, sums, batch)
  totals = None
  for batch, weights in _placed(trainer, minibatch, number, version):
    if totals is None:
      totals = steps.start(params, batch, weights, sums)
    totals = steps.add(params, totals, batch, weights, sums)
  return totals


def _placed(
    trainer: trainer_lib.Trainer,
    minibatch: Minibatch,
    number: int,
    version: types.Array | None,
) -> Iterator[tuple[types.Batch, Mapping[str, jax.Array]]]:
  """Yields the micro-batches on the devices, with key and controls."""
  key = None
  if trainer.needs.key:
    root = jax.random.fold_in(jax.random.key(trainer.seed), _NOISE_STREAM)
    key = jax.device_put(
        jax.random.fold_in(root, number),
        sharding_lib.replicated(trainer.mesh),
    )
  controls = _controls(trainer)
  if trainer.needs.versions and version is not None:
    controls[spec_lib.VERSION_CONTROL] = version
  for piece in minibatch.pieces:
    batch, weights = scoring.place(piece, trainer.rows)
    terms = dataclasses.replace(batch.terms, key=key, controls=controls)
    yield dataclasses.replace(batch, terms=terms), weights


def _controls(trainer: trainer_lib.Trainer) -> dict[str, types.Array]:
  return {
      name: np.float32(value) for name, value in trainer.controls.items()
  }


def _with_topk(
    batch: types.Batch, trainer: trainer_lib.Trainer
) -> types.Batch:
  """Keeps as many of the top-K entries as the objective reads."""
  topk = trainer.needs.behavior_topk or trainer.needs.proximal_topk
  ids, logprobs = batch.terms.topk_ids, batch.terms.topk_anchor_logprobs
  if ids is not None:
    ids = ids[..., :topk] if topk else None
    logprobs = logprobs[..., :topk] if topk else None
  terms = dataclasses.replace(
      batch.terms, topk_ids=ids, topk_anchor_logprobs=logprobs
  )
  return dataclasses.replace(batch, terms=terms)
