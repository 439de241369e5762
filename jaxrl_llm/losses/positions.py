"""Diagnostics by response position, as sums that merge.

A bucket holds the response positions [e_i, e_{i+1}), e = 0, 1, 2, 4, 8, …;
tool tokens count. Sums are pooled first and divided last, so micro-batches,
packing, padding and hosts change nothing.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import divergences
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import tokens as tokens_lib

Array = jax.Array

# Bin i of a histogram holds what is nearest to ±SCALE (exp(|i| WIDTH) − 1)
# nats: 0.00009 nats wide at 0, 9 % of the value far from it, up to ±100 nats.
SCALE = 1e-3
WIDTH = 0.09
HALF = 128
BINS = 2 * HALF + 1
BEHAVIOR = "behavior/"
BOUNDS = ("bound_low", "bound_high")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seen:
  """What a micro-batch shows of a policy loss; arrays [B, T], detached.

  Attributes:
    tokens: the micro-batch, rejected tokens taken out.
    log_ratios: float, nats, what the ratio part made.
    region: the trust region's verdict.
    factors: float, what multiplies A_t ∇log π_t: the ratio after region,
      surrogate and correction, 0 where the token was cut.
  """

  tokens: tokens_lib.Tokens
  log_ratios: Array
  region: surrogates.Region
  factors: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Positions:
  """Sums of each bucket; training/curves.py says what they become.

  Attributes:
    sums: float32 [buckets] by name.
    histograms: float32 [buckets, bins], counts of log-ratios by name.
    anchor: policy under the log-ratios.
  """

  sums: Mapping[str, Array]
  histograms: Mapping[str, Array]
  anchor: str = dataclasses.field(metadata={"static": True})

  def merge(self, other: "Positions") -> "Positions":
    return jax.tree.map(jnp.add, self, other)

  def finish(self) -> dict[str, float]:
    """No number: all that this holds is by position."""
    return {}


def edges(buckets: int) -> tuple[int, ...]:
  """Edges of so many buckets: 0, 1, 2, 4, …"""
  return (0, *(2**power for power in range(buckets)))


def of_microbatch(spec: Any, seen: Seen, weights: Array) -> Positions:
  """Sums of one micro-batch.

  Args:
    spec: the objective.
    seen: of its policy loss.
    weights: float [B, T], of the tokens in the policy loss.
  """
  seen, weights = jax.lax.stop_gradient((seen, weights))
  tokens = seen.tokens
  mask = tokens.layout.mask
  features = {"tokens": jnp.ones_like(tokens.logprobs)}
  features["tv"] = _total_variation(spec, tokens)
  gaps = {"": tokens.log_ratios()}
  behavior = tokens.terms.behavior_logprobs
  if spec.anchor != "behavior" and behavior is not None:
    clamp = tokens_lib.LOG_RATIO_CLAMP
    drift = tokens.logprobs - masked.fill(behavior, mask)
    gaps[BEHAVIOR] = masked.clamp(drift, -clamp, clamp)
  binned = {}
  for prefix, values in gaps.items():
    own, logs = _of_gaps(values, tokens.layout)
    features |= {prefix + name: value for name, value in own.items()}
    binned |= {prefix + name: value for name, value in logs.items()}
  if not spec.surrogate.pairwise:
    features |= _of_region(seen)
    features["contribution"] = jnp.abs(
        weights * seen.factors * tokens.advantages
    )
  where = _buckets(tokens)
  count = (mask.shape[1] - 1).bit_length() + 1
  return Positions(
      _sums(features, mask, where, count),
      {
          name: _histogram(values, mask, where, count)
          for name, values in binned.items()
      },
      spec.anchor,
  )


def _buckets(tokens: tokens_lib.Tokens) -> Array:
  """int32 [B, T]: the bucket of each token; undefined where masked.

  Without response positions in the terms, response tokens are counted.
  """
  where = tokens.terms.response_positions
  if where is None:
    where = tokens.layout.positions.astype(jnp.int32) - 1
  count = (where.shape[1] - 1).bit_length() + 1
  inner = jnp.asarray(edges(count)[1:-1], jnp.int32)
  return jnp.sum(where[..., None] >= inner, axis=-1, dtype=jnp.int32)


def _of_gaps(
    gaps: Array, layout: masked.Layout
) -> tuple[dict[str, Array], dict[str, Array]]:
  """(values to sum, log-ratios to count) of log-ratios [B, T]."""
  sums = masked.running_sums(gaps, layout)
  weights = jnp.exp(jnp.minimum(sums, tokens_lib.LOG_RATIO_CLAMP))
  logs = {"log_ratio": gaps, "cumulative": sums}
  return logs | {"weight": weights, "square": jnp.square(weights)}, logs


def _of_region(seen: Seen) -> dict[str, Array]:
  """What the trust region did to each token."""
  region, cut = seen.region, ~seen.region.active
  features = {
      "clip": cut,
      "clip_high": cut & (seen.log_ratios > 0),
      "clip_low": cut & (seen.log_ratios < 0),
  }
  if region.bounds is not None:
    for name, bound in zip(BOUNDS, region.bounds):
      bound = jnp.broadcast_to(bound, cut.shape)
      given = jnp.isfinite(bound)
      features |= {name: masked.fill(bound, given), f"{name}/tokens": given}
  if region.budget_shares is not None:
    features["budget"] = region.budget_shares
  return features


def _total_variation(spec: Any, tokens: tokens_lib.Tokens) -> Array:
  """float [B, T]: over the same outcomes as the spec's region, if it has."""
  region = spec.trust_region
  if not isinstance(region, divergences.Divergence):
    region = divergences.Divergence()
  kind = "topk_tv" if region.topk else "binary_tv"
  return dataclasses.replace(region, divergence=kind).divergences(tokens)


def _sums(
    features: Mapping[str, Array], mask: Array, where: Array, count: int
) -> dict[str, Array]:
  """Adds up each feature [B, T] by bucket, float32 [count]."""
  values = jnp.stack(
      [
          masked.fill(value.astype(jnp.float32), mask)
          for value in features.values()
      ],
      axis=-1,
  )
  members = (where[..., None] == jnp.arange(count)) & mask[..., None]
  # A product: scattering so many features would cost several times as much.
  sums = jnp.einsum(
      "btn,btf->fn",
      members.astype(jnp.float32),
      values,
      precision=jax.lax.Precision.HIGHEST,
  )
  return dict(zip(features, sums))


def _histogram(values: Array, mask: Array, where: Array, count: int) -> Array:
  """Counts log-ratios [B, T] by bucket and bin, float32 [count, bins]."""
  values = masked.fill(values, mask)
  scaled = jnp.sign(values) * jnp.log1p(jnp.abs(values) / SCALE) / WIDTH
  bins = jnp.clip(jnp.round(scaled), -HALF, HALF).astype(jnp.int32) + HALF
  places = masked.fill(where, mask) * BINS + bins
  counts = jnp.zeros(count * BINS, jnp.float32)
  counts = counts.at[places.reshape(-1)].add(
      mask.astype(jnp.float32).reshape(-1)
  )
  return counts.reshape(count, BINS)
