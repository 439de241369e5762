"""Batches and evaluation shared by the tests of the losses."""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import tokens as tokens_lib

_FOLDER = pathlib.Path(__file__).parents[1] / "golden"


def load(name):
  """Reads a golden file."""
  return json.loads((_FOLDER / name).read_text())


GOLDEN = load("is.json")
CASES = GOLDEN["cases"]


def golden_terms(
    *, small=False, mask="mask", advantages="adv_tok", role="proximal", **fields
):
  """Terms of the 2 x 6 golden batch; `logp_old` plays `role`."""
  inputs = GOLDEN["inputs"]
  suffix = "_small" if small else ""
  values = {
      "logprobs": inputs["logp_new" + suffix],
      "advantages": inputs[advantages],
      f"{role}_logprobs": inputs["logp_old" + suffix],
  }
  if role == "proximal":
    values["behavior_logprobs"] = inputs["logp_rollout"]
  values |= fields
  values = {k: jnp.asarray(v, float) for k, v in values.items()}
  return types.Terms(mask=jnp.asarray(inputs[mask]), **values)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(spec, batch):
  """((loss, token losses), d loss / d logprobs), one mini-batch at once."""
  weights = objective.denominators(spec, batch)
  sums = None
  if objective.requirements(spec).statistics:
    sums = objective.statistics(spec, batch)

  def loss(logprobs):
    live = dataclasses.replace(batch, logprobs=logprobs)
    losses, _ = objective.token_losses(spec, live, sums)
    return objective.apply(spec, live, weights, sums).loss, losses

  return jax.value_and_grad(loss, has_aux=True)(batch.logprobs)


@functools.partial(jax.jit, static_argnums=0)
def full_output(spec, batch):
  """LossOutput of one mini-batch at once."""
  weights = objective.denominators(spec, batch)
  sums = None
  if objective.requirements(spec).statistics:
    sums = objective.statistics(spec, batch)
  return objective.apply(spec, batch, weights, sums)


def near(found, wanted, mask=None, tolerance=1e-9):
  """Asserts equality outside `mask`-ed entries."""
  found, wanted = np.asarray(found, float), np.asarray(wanted, float)
  if mask is not None:
    found, wanted = np.where(mask, found, 0), np.where(mask, wanted, 0)
  np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@functools.partial(jax.jit, static_argnums=0)
def look(spec, batch):
  """(tokens, log-ratios, region, what the prefix spent or None)."""
  tokens = tokens_lib.view(spec, batch)
  logs, _ = tokens_lib.ratio_logs(spec, tokens)
  spending = None
  if spec.choice("trust_region") == "prefix_budget":
    spending = spec.trust_region.spending(tokens)
  sums = None
  if spec.trust_region.needs_statistics:
    sums = spec.trust_region.statistics(logs, tokens)
  return tokens, logs, spec.trust_region(logs, tokens, sums), spending


def distance(found, wanted):
  """Largest difference over the largest wanted entry."""
  found, wanted = np.asarray(found, float), np.asarray(wanted, float)
  scale = max(np.max(np.abs(wanted)), 1e-12)
  return np.max(np.abs(found - wanted)) / scale


def sequences(seed, count=6, longest=7, topk=4, drift=0.3):
  """A list of ragged sequences with every per-token field of Terms.

  Responses hold tool tokens; vocabulary of 8 with its whole distribution, so
  that the top-K fields are consistent with the sampled log-probs.
  """
  rng = np.random.default_rng(seed)
  result = []
  for number in range(count):
    length = int(rng.integers(2, longest + 1))
    logits = rng.normal(size=(length, 8))
    policies = [
        _log_softmax(logits + drift * rng.normal(size=logits.shape))
        for _ in range(4)
    ]
    behavior, proximal, live, reference = policies
    tokens = rng.integers(0, 8, size=length)
    mask = rng.random(length) < 0.8
    mask[rng.integers(length)] = True
    pick = lambda p: np.take_along_axis(p, tokens[:, None], 1)[:, 0]
    result.append({
        "mask": mask,
        "tokens": tokens,
        "sequence_ids": np.full(length, number),
        "group_ids": np.full(length, number // 2),
        "record_ids": np.full(length, 1000 + number, np.uint32),
        "response_positions": np.arange(length),
        "versions": rng.integers(0, 3, size=length),
        "advantages": np.full(length, rng.normal()),
        "rewards": np.full(length, rng.normal()),
        "weights": np.full(length, rng.random() + 0.5),
        "behavior_logprobs": pick(behavior),
        "proximal_logprobs": pick(proximal),
        "reference_logprobs": pick(reference),
        "logprobs": pick(live),
        "entropy": -np.sum(np.exp(live) * live, -1),
        "distributions": (behavior, proximal, live),
        "topk": topk,
    })
  return result


def _log_softmax(logits):
  return logits - np.log(np.sum(np.exp(logits), -1, keepdims=True))


_EMPTY = {
    "mask": False, "sequence_ids": -1, "group_ids": -1, "segment_ids": 0
}
_INTEGERS = (
    "tokens", "segment_ids", "sequence_ids", "group_ids", "response_positions",
    "versions", "topk_ids",
)


def pack(spec, rows, width, *, left=0, garbage=0.0, key=None):
  """Packs rows (lists of sequences) into Terms [len(rows), width].

  Args:
    spec: decides whose top-K the terms carry.
    rows: lists of sequences from `sequences`.
    width: T.
    left: padding before the first sequence of each row.
    garbage: float that fills every masked position and all padding.
    key: PRNG key of the terms.
  """
  fields = {}
  needs = objective.requirements(spec)
  for b, row in enumerate(rows):
    at = left
    for number, sequence in enumerate(row):
      length = len(sequence["mask"])
      values = _fields(sequence, needs)
      values["segment_ids"] = np.full(length, number + 1)
      for name, value in values.items():
        if name not in fields:
          blank = _EMPTY.get(name, garbage if value.dtype.kind == "f" else 0)
          shape = (len(rows), width) + value.shape[1:]
          fields[name] = np.full(shape, blank, value.dtype)
        fields[name][b, at : at + length] = value
      at += length
  for name, value in fields.items():
    if value.dtype.kind == "f":
      value[~fields["mask"]] = garbage
  arrays = {
      name: jnp.asarray(value, _dtype(name, value))
      for name, value in fields.items()
  }
  if needs.pairs:
    arrays |= by_sequence([s for row in rows for s in row])
  return types.Terms(key=key, **arrays)


def by_sequence(sequences, size=16):
  """Scores and groups [size] by sequence id; NaN and -1 beyond."""
  scores, groups = np.full(size, np.nan), np.full(size, -1)
  for sequence in sequences:
    number = sequence["sequence_ids"][0]
    scores[number] = sequence["advantages"][0]
    groups[number] = sequence["group_ids"][0]
  return {
      "sequence_scores": jnp.asarray(scores, float),
      "sequence_groups": jnp.asarray(groups, jnp.int32),
  }


def _dtype(name, value):
  if name in _INTEGERS:
    return jnp.int32
  return float if value.dtype.kind == "f" else value.dtype


def _fields(sequence, needs):
  values = {
      k: v for k, v in sequence.items() if k not in ("distributions", "topk")
  }
  behavior, proximal, live = sequence["distributions"]
  anchor = behavior if needs.behavior_topk else proximal
  if needs.behavior_topk or needs.proximal_topk:
    ids = np.argsort(-anchor, -1)[:, : sequence["topk"]]
    values["topk_ids"] = ids
    values["topk_anchor_logprobs"] = np.take_along_axis(anchor, ids, 1)
    values["topk_logprobs"] = np.take_along_axis(live, ids, 1)
  return values


# Number keys that make a spec fit batches of small vocabulary and length.
SMALL = {"sis": {"selection_topk": 4}, "dr_grpo": {"horizon": 8.0}}


def overrides(name):
  """Overrides that build the named algorithm for small batches."""
  return {"name": name, **SMALL.get(name, {})}
