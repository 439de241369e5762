"""One mini-batch: curate, pack, fix the denominators, split, add up."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.curation import episodes as episodes_lib
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.models import placement
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import curate
from jaxrl_llm.training import packed
from jaxrl_llm.training import pairs
from jaxrl_llm.training import scoring
from jaxrl_llm.training import step
from jaxrl_llm.training import trainer as trainer_lib

# Keeps the trainer's noise apart from that of the sampler.
_NOISE_STREAM = 0x7261696E


@dataclasses.dataclass(frozen=True)
class Minibatch:
  """A mini-batch on the host, split into micro-batches.

  Attributes:
    pieces: batch and per-token weights of each micro-batch, numpy, filled in
      this host's rows; none where curation left no episode, or an objective of
      pairs finds none.
    tokens: tokens that fill the rows, prompts included; a shared prompt
      counts once.
    known: numbers for the metrics.
    sequences: terms [N] by sequence id, the same in every micro-batch.
  """

  pieces: Sequence[tuple[types.Batch, Mapping[str, np.ndarray]]]
  tokens: int
  known: Mapping[str, float]
  sequences: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def build(
    trainer: trainer_lib.Trainer,
    rollouts: Sequence[types.Rollout],
    terms: Mapping[str, Sequence[np.ndarray]],
) -> Minibatch:
  """Packs and splits a mini-batch of records at hand; see `build_rows`."""
  rows = packed.Rows.pack(trainer.shape, rollouts)
  return build_rows(trainer, rows, terms)


def build_rows(
    trainer: trainer_lib.Trainer,
    rows: packed.Rows,
    terms: Mapping[str, Sequence[np.ndarray]],
) -> Minibatch:
  """Splits a mini-batch; all hosts call.

  Args:
    trainer: of the run; a curation reads every record, so that no host may
      lack one.
    rows: of N records.
    terms: prepared terms by name, an entry per record.
  """
  index = rows.index
  rewards = index.rewards[~index.unfinished_mask].astype(np.float64)
  known = {
      "reward": float(np.mean(rewards)) if rewards.size else np.nan,
      "response_length": float(np.mean(index.response_lengths)),
  }
  if trainer.needs.pairs and not pairs.any_in(index, terms):
    return Minibatch((), 0, known)
  whole, original, weights = None, None, None
  if trainer.curation is not None:
    left = curate.cut(rows.rollouts, terms)
    if not left.rollouts:
      return Minibatch((), 0, known)
    whole = rows
    if curate.divides_by_original(trainer.curation):
      original = _original_weights(trainer, whole, terms)
    rows, terms = packed.Rows.pack(trainer.shape, left.rollouts), left.terms
  batch = rows.assemble(terms)
  if original is not None:
    weights = {
        name: scoring.lay_out(
            left.of(values), rows.index, rows.rows, batch.tokens.shape
        )
        for name, values in original.items()
    }
  tokens, shape = rows.tokens, trainer.shape
  known |= {
      "sequences": len(rows.index),
      "row_tokens": tokens,
      "microbatches": rows.count,
      "fill": tokens / (rows.count * shape.rows * shape.tokens),
  }
  if whole is not None:
    known |= _savings(whole, rows, tokens)
  return Minibatch(
      split(trainer, batch, rows.count, weights),
      tokens,
      known,
      pairs.by_sequence(rows.index, terms) if trainer.needs.pairs else {},
  )


def split(
    trainer: trainer_lib.Trainer,
    batch: types.Batch,
    count: int,
    weights: Mapping[str, np.ndarray] | None = None,
) -> list[tuple[types.Batch, Mapping[str, np.ndarray]]]:
  """Fixes the denominators over a whole mini-batch, and cuts its rows.

  Args:
    trainer: of the run.
    batch: numpy; a power of two of micro-batches, so that the function of the
      denominators compiles for a handful of shapes (that of a micro-batch for
      one).
    count: micro-batches to cut off; rows beyond are empty.
    weights: the denominators' per-token weights, where they are known.
  """
  batch = _with_topk(batch, trainer)
  if weights is None:
    # Without a curation all weights are those of prompts.
    weights = _denominators(trainer, batch, trainer.curation is None)
  return packed.cut((batch, weights), trainer.shape.rows, count)


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
  everywhere = sharding_lib.replicated(trainer.mesh)
  sequences = placement.put(dict(minibatch.sequences), everywhere)
  for piece in minibatch.pieces:
    batch, weights = scoring.place(piece, trainer.rows)
    batch = complete(trainer, batch, number, version)
    yield dataclasses.replace(
        batch, terms=dataclasses.replace(batch.terms, **sequences)
    ), weights


def complete(
    trainer: trainer_lib.Trainer,
    batch: types.Batch,
    number: int,
    version: types.Array | None = None,
) -> types.Batch:
  """Adds what an objective reads that no record holds: key and controls.

  Args:
    trainer: of the run.
    batch: a placed micro-batch.
    number: updates applied or skipped before; seeds the noise.
    version: as in `accumulate`.
  """
  key = None
  if trainer.needs.key:
    root = jax.random.fold_in(jax.random.key(trainer.seed), _NOISE_STREAM)
    key = jax.random.key_data(jax.random.fold_in(root, number))
    everywhere = sharding_lib.replicated(trainer.mesh)
    key = jax.random.wrap_key_data(placement.put(key, everywhere))
  controls = _controls(trainer)
  if trainer.needs.versions and version is not None:
    controls[spec_lib.VERSION_CONTROL] = version
  batch = _with_topk(batch, trainer)
  terms = dataclasses.replace(batch.terms, key=key, controls=controls)
  return dataclasses.replace(batch, terms=terms)


def _denominators(trainer, batch, weigh_all, everywhere=False):
  """Returns per-token weights [B, T] by term, numpy; see over_whole."""
  controls = _controls(trainer)

  def function(terms):
    terms = dataclasses.replace(terms, controls=controls)
    return trainer.steps.denominators(terms, weigh_all)

  return scoring.over_whole(
      function, batch.terms, trainer.shape, trainer.rows, everywhere
  )


def _original_weights(
    trainer: trainer_lib.Trainer,
    whole: packed.Rows,
    terms: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, list[np.ndarray]]:
  """Returns the per-token weights of records before they are pruned or cut.

  By term, an [R] per record; divided by what the whole mini-batch holds.
  """
  batch = _with_topk(whole.assemble(terms), trainer)
  # What is left of a record may come to lie in rows of another host.
  weights = _denominators(trainer, batch, True, everywhere=True)
  found = {
      name: scoring.responses(values, whole.index, whole.rows)
      for name, values in weights.items()
  }
  if trainer.curation.denominator == episodes_lib.QUESTION:
    means = curate.question_means(whole.rollouts)
    # Rejected tokens have no weight.
    found["policy"] = [
        np.where(row != 0, mean * weights, 0.0).astype(row.dtype)
        for row, mean, weights in zip(
            found["policy"], means, terms["weights"]
        )
    ]
  return found


def _savings(
    whole: packed.Rows, left: packed.Rows, tokens: int
) -> dict[str, float]:
  """Returns what curation left, and the tokens of rows that it saved."""
  return {
      "curation/survivors": len(left.rollouts),
      "curation/survivor_share": len(left.rollouts) / len(whole.rollouts),
      "curation/saved_tokens": whole.tokens - tokens,
      "curation/saved_token_share": 1.0 - tokens / whole.tokens,
      "curation/saved_microbatches": whole.count - left.count,
  }


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
  if ids is not None and ids.shape[-1] != topk:
    ids = ids[..., :topk] if topk else None
    logprobs = logprobs[..., :topk] if topk else None
  terms = dataclasses.replace(
      batch.terms, topk_ids=ids, topk_anchor_logprobs=logprobs
  )
  return dataclasses.replace(batch, terms=terms)
