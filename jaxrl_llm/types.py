"""Records, device arrays and metric sums that every package shares.

Shape letters, used in every docstring of this project:
  B rows of a batch (a row may hold several packed sequences), T tokens of a
  row, N sequences, G group size, P prompt tokens, R response tokens,
  V vocabulary, K top-K entries (or kv-heads inside models/), D width,
  S cache slots, C cache capacity in tokens, L layers.

Time convention: an array over tokens speaks of the token at its own index.
`logprobs[t]` is log π(tokens[t] | tokens[<t]), so the entry of the first token
of a sequence is never trained on, and `mask[t]` refers to `tokens[t]`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
PyTree = Any

FINISH_REASONS = ("stop", "length", "window", "error")
ROLES = ("train", "baseline")


@dataclasses.dataclass(frozen=True)
class Rollout:
  """One response with everything that a trainer may need of it (host, numpy).

  Attributes:
    record_id: unique 63-bit fingerprint of (lineage, round, prompt, sample).
    prompt_id: 63-bit fingerprint of the problem.
    group_id: 63-bit fingerprint of (lineage, round, prompt).
    sample_index: j, counted over all samples of the prompt in the round.
    round: generation round k.
    prompt_tokens: int32 [P], the ids as the sampler saw them.
    response_tokens: int32 [R].
    response_mask: bool [R], False on tool and observation tokens.
    behavior_logprobs: float32 [R], nats, of the distribution sampled from
      (temperature and truncation applied).
    log_kept_mass: float32 [R], log of the full-vocabulary mass that truncated
      sampling kept; 0 without truncation. behavior_logprobs + log_kept_mass is
      the full-vocabulary, temperature-scaled log-prob.
    policy_versions: int32 [R], optimizer updates of the policy that drew each
      token.
    lineage: versions compare only within one lineage.
    window_start: tokens before this index were drawn, and trained on, in
      earlier rounds: generation.window cut the response there. They are
      context.
    topk_ids: int32 [R, K], most likely ids under the behaviour policy; K = 0
      when not recorded.
    topk_logprobs: float32 [R, K], same convention as behavior_logprobs.
    finish_reason: one of FINISH_REASONS; "window" marks a response that is
      unfinished and goes on in the next round.
    role: one of ROLES; a baseline is never trained on.
    temperature: sampling temperature.
    reward: total reward; NaN when the verifier failed. An unfinished response
      was not graded and has 0 here, which is no score: read `unfinished`.
    reward_parts: named parts of the reward; NaN where there is no verdict.
    reference_answer: the ground truth the verifier saw.
    prompt_text: the problem as given.
    response_text: the decoded response.
  """

  record_id: int
  prompt_id: int
  group_id: int
  sample_index: int
  round: int
  prompt_tokens: np.ndarray
  response_tokens: np.ndarray
  response_mask: np.ndarray
  behavior_logprobs: np.ndarray
  log_kept_mass: np.ndarray
  policy_versions: np.ndarray
  lineage: str
  window_start: int
  topk_ids: np.ndarray
  topk_logprobs: np.ndarray
  finish_reason: str
  role: str
  temperature: float
  reward: float
  reward_parts: Mapping[str, float]
  reference_answer: str
  prompt_text: str
  response_text: str

  @property
  def unfinished(self) -> bool:
    """Whether a window cut the response; it has no reward yet."""
    return self.finish_reason == "window"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Terms:
  """Per-token quantities that an objective may read; unused ones are None.

  All arrays are [B, T] unless stated; log-probs are float nats of the
  full-vocabulary, temperature-scaled distribution. Entries where `mask` is
  False are undefined and may be NaN.

  Attributes:
    mask: bool, True on trained response tokens.
    tokens: int32 token ids.
    segment_ids: int32, 0 on padding; 1, 2, … number the segments of a row. A
      segment with trained tokens is one sequence, or the end of one.
    sequence_ids: int32 in [0, N), unique over the mini-batch; -1 on padding.
    group_ids: int32, unique over the mini-batch; -1 on padding.
    record_ids: uint32, low bits of the record id; seeds per-token noise.
    response_positions: int32, index within the response, tool tokens counted.
    versions: int32, policy version that drew the token.
    advantages: float, constant of the loss.
    rewards: float, sequence reward, broadcast.
    weights: float, curation weight of the token (1 without curation).
    behavior_logprobs: recorded while sampling.
    proximal_logprobs: recomputed before the first update on the batch.
    reference_logprobs: of the frozen reference policy.
    logprobs: of the live policy; the only differentiable log-prob.
    entropy: live entropy in nats.
    values: live critic values.
    proximal_values: critic values before the first update.
    returns: value targets.
    sequence_scores: float [N], advantages of the sequences of the whole
      mini-batch by sequence id; undefined beyond them.
    sequence_groups: int32 [N], their group ids; -1 beyond them.
    topk_ids: int32 [B, T, K], top-K ids of the anchor policy.
    topk_anchor_logprobs: [B, T, K], anchor log-probs at topk_ids.
    topk_logprobs: [B, T, K], live log-probs at topk_ids.
    key: PRNG key of this step, or None.
    controls: traced scalars by name.
  """

  mask: Array
  tokens: Array | None = None
  segment_ids: Array | None = None
  sequence_ids: Array | None = None
  group_ids: Array | None = None
  record_ids: Array | None = None
  response_positions: Array | None = None
  versions: Array | None = None
  advantages: Array | None = None
  rewards: Array | None = None
  weights: Array | None = None
  behavior_logprobs: Array | None = None
  proximal_logprobs: Array | None = None
  reference_logprobs: Array | None = None
  logprobs: Array | None = None
  entropy: Array | None = None
  values: Array | None = None
  proximal_values: Array | None = None
  returns: Array | None = None
  sequence_scores: Array | None = None
  sequence_groups: Array | None = None
  topk_ids: Array | None = None
  topk_anchor_logprobs: Array | None = None
  topk_logprobs: Array | None = None
  key: Array | None = None
  controls: Mapping[str, Array] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """Packed rows: what the model reads, and the terms the objective reads.

  Attributes:
    tokens: int32 [B, T].
    segment_ids: int32 [B, T], 0 on padding; attention stays inside a segment
      and its parent.
    parent_ids: int32 [B, T], the segment that each continues: that of the
      shared prompt; the own one where there is none.
    positions: int32 [B, T], index within the sequence, prompt counted.
    temperatures: float32 [B, T], sampling temperature of the sequence; 1 on
      padding.
    terms: see Terms; the live fields are filled by the training step.
  """

  tokens: Array
  segment_ids: Array
  parent_ids: Array
  positions: Array
  temperatures: Array
  terms: Terms


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossOutput:
  """A weighted sum, ready to be added over micro-batches, and its metrics.

  Attributes:
    loss: float scalar, the optimised quantity; nothing is divided afterwards.
    metrics: mergeable sums by name (Sum, Mean, Max, Moments, Histogram).
  """

  loss: Array
  metrics: Mapping[str, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sum:
  """A sum that is already weighted, such as the optimised loss."""

  total: Array

  def merge(self, other: "Sum") -> "Sum":
    return Sum(self.total + other.total)

  def finish(self) -> dict[str, float]:
    return {"": float(self.total)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
  """A weighted mean kept as two sums."""

  total: Array
  weight: Array

  @classmethod
  def of(cls, values: Array, mask: Array) -> "Mean":
    return cls(
        jnp.sum(values, where=mask, dtype=jnp.float32),
        jnp.sum(mask, dtype=jnp.float32),
    )

  def merge(self, other: "Mean") -> "Mean":
    return Mean(self.total + other.total, self.weight + other.weight)

  def finish(self) -> dict[str, float]:
    weight = float(self.weight)
    return {"": float(self.total) / weight if weight else float("nan")}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Max:
  """A maximum; -inf when nothing was seen."""

  value: Array

  @classmethod
  def of(cls, values: Array, mask: Array) -> "Max":
    return cls(
        jnp.max(values, where=mask, initial=-jnp.inf).astype(jnp.float32)
    )

  def merge(self, other: "Max") -> "Max":
    return Max(jnp.maximum(self.value, other.value))

  def finish(self) -> dict[str, float]:
    return {"": float(self.value)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moments:
  """Count, sum and sum of squares: mean, and effective sample size if asked.

  The effective sample size of weights w is (Σw)² / Σw², given as a share of
  the count; pooled over micro-batches, never averaged.
  """

  count: Array
  total: Array
  square: Array

  @classmethod
  def of(cls, values: Array, mask: Array) -> "Moments":
    return cls(
        jnp.sum(mask, dtype=jnp.float32),
        jnp.sum(values, where=mask, dtype=jnp.float32),
        jnp.sum(jnp.square(values), where=mask, dtype=jnp.float32),
    )

  def merge(self, other: "Moments") -> "Moments":
    return Moments(
        self.count + other.count,
        self.total + other.total,
        self.square + other.square,
    )

  def finish(self) -> dict[str, float]:
    count, total, square = map(float, (self.count, self.total, self.square))
    if not count:
      return {"/mean": float("nan"), "/ess": float("nan")}
    ess = total * total / square / count if square else float("nan")
    return {"/mean": total / count, "/ess": ess}


LOG_RATIO_BIN_WIDTH = 0.01
LOG_RATIO_BINS = 401


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Histogram:
  """Counts of log-ratios in fixed bins; quantiles are exact to one bin.

  Bin i holds values nearest to (i - (BINS - 1) / 2) * BIN_WIDTH; the two end
  bins also hold everything beyond them.
  """

  counts: Array

  @classmethod
  def of(cls, log_ratios: Array, mask: Array) -> "Histogram":
    centre = (LOG_RATIO_BINS - 1) // 2
    scaled = jnp.where(mask, log_ratios, 0.0) / LOG_RATIO_BIN_WIDTH
    scaled = jnp.clip(jnp.round(scaled), -centre, centre)
    bins = scaled.astype(jnp.int32) + centre
    ones = mask.astype(jnp.float32)
    counts = jnp.zeros(LOG_RATIO_BINS, jnp.float32)
    return cls(counts.at[bins.reshape(-1)].add(ones.reshape(-1)))

  def merge(self, other: "Histogram") -> "Histogram":
    return Histogram(self.counts + other.counts)

  def finish(self) -> dict[str, float]:
    counts = np.asarray(self.counts, np.float64)
    total = counts.sum()
    if not total:
      return {f"/q{q:02d}": float("nan") for q in (1, 50, 99)}
    centre = (LOG_RATIO_BINS - 1) // 2
    cumulative = np.cumsum(counts)
    return {
        f"/q{q:02d}": float(
            (np.searchsorted(cumulative, total * q / 100) - centre)
            * LOG_RATIO_BIN_WIDTH
        )
        for q in (1, 50, 99)
    }


def merge_metrics(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> dict[str, Any]:
  """Merges two sets of metric sums that have the same names."""
  return {name: left[name].merge(right[name]) for name in left}


def finish_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
  """Turns metric sums into named Python floats."""
  return {
      name + suffix: value
      for name, metric in metrics.items()
      for suffix, value in metric.finish().items()
  }
