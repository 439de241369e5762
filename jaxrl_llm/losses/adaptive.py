"""ACPO's adaptive clip (arXiv 2606.22570): bounds from batch statistics."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import tokens as tokens_lib
from jaxrl_llm.losses import trust_regions

Array = jax.Array

_VARIANCE_FLOOR = 1e-8
# Variances below this many ulp of the second moment are rounding.
_NOISE_ULPS = 4.0


@dataclasses.dataclass(frozen=True)
class AdaptiveClip(parts.Part):
  """PPO's clip with ε = clip(base + slope · std of r in its bin, min, max).

  Tokens are binned by a probability; the statistics are sums of (r − 1) and
  (r − 1)² per bin, so they add over micro-batches without cancellation.
  """

  epsilon_base: float = parts.key(
      0.2, "clip width of a bin whose ratios are equal", at_least=0.0
  )
  epsilon_slope: float = parts.key(
      3.0, "clip width added per unit of the bin's std of ratios", at_least=0.0
  )
  epsilon_min: float = parts.key(
      0.0, "smallest adaptive clip width", at_least=0.0
  )
  epsilon_max: float = parts.key(
      3.0, "largest adaptive clip width", at_least=0.0
  )
  probability_bins: int = parts.key(
      5, "equal bins of [0, 1] that tokens fall into by probability",
      at_least=1,
  )
  bin_by: str = parts.key(
      "current",
      "probability that bins a token: of the current or the behavior policy",
      choices=("current", "behavior"),
  )
  statistics_scope: str = parts.key(
      "minibatch",
      "tokens behind the std: minibatch, or microbatch (results then depend"
      " on the micro-batch size)",
      choices=("minibatch", "microbatch"),
  )
  dual_clip: float | None = parts.key(None, **trust_regions.DUAL_CLIP)

  topk = 0
  kept = trust_regions.KEPT_BOUND

  @property
  def needs_statistics(self) -> bool:
    """Whether a first pass over the mini-batch sums `statistics`."""
    return self.statistics_scope == "minibatch"

  def bins(self, tokens: tokens_lib.Tokens) -> Array:
    """bool [B, T, bins]: the bin [i/n, (i+1)/n) of each response token."""
    mask = tokens.layout.mask
    logprobs = tokens.logprobs
    if self.bin_by == "behavior":
      logprobs = masked.fill(tokens.terms.behavior_logprobs, mask)
    count = self.probability_bins
    edges = jnp.arange(1, count, dtype=logprobs.dtype) / count
    index = jnp.sum(jnp.exp(logprobs)[..., None] >= edges, axis=-1)
    return (index[..., None] == jnp.arange(count)) & mask[..., None]

  def statistics(
      self, log_ratios: Array, tokens: tokens_lib.Tokens
  ) -> dict[str, Array]:
    """Count, Σ(r − 1) and Σ(r − 1)² of each bin, [bins]."""
    members = self.bins(tokens)
    offsets = jnp.exp(log_ratios) - 1.0
    add = lambda x: jnp.sum(
        jnp.where(members, x[..., None], 0.0), axis=(0, 1)
    )
    return {
        "count": add(jnp.ones_like(offsets)),
        "total": add(offsets),
        "square": add(jnp.square(offsets)),
    }

  def widths(self, statistics: trust_regions.Statistics) -> Array:
    """float [bins]: ε of each bin; an empty bin keeps the base."""
    count = jnp.maximum(statistics["count"], 1.0)
    second = statistics["square"] / count
    variance = second - jnp.square(statistics["total"] / count)
    noise = _NOISE_ULPS * jnp.finfo(second.dtype).eps * second
    variance = jnp.where(variance > noise, variance, 0.0)
    deviation = jnp.sqrt(variance + _VARIANCE_FLOOR)
    widths = self.epsilon_base + self.epsilon_slope * deviation
    widths = jnp.clip(widths, self.epsilon_min, self.epsilon_max)
    return jnp.where(statistics["count"] > 0, widths, self.epsilon_base)

  def __call__(
      self,
      log_ratios: Array,
      tokens: tokens_lib.Tokens,
      statistics: trust_regions.Statistics,
  ) -> surrogates.Region:
    if not self.needs_statistics:
      statistics = self.statistics(log_ratios, tokens)
    widths = self.widths(statistics)
    width = jnp.sum(jnp.where(self.bins(tokens), widths, 0.0), axis=-1)
    return trust_regions.bounded(
        jnp.exp(log_ratios),
        tokens.advantages,
        1.0 - width,
        1.0 + width,
        self.dual_clip,
    )

  def describe(self, r: str, anchor: str) -> str:
    text = (
        f"cut where A > 0 and {r} > 1 + ε, or A < 0 and {r} < 1 − ε; ε = clip("
        f"{self.epsilon_base:g} + {self.epsilon_slope:g} std of {r} in the "
        f"token's bin, {self.epsilon_min:g}, {self.epsilon_max:g}), "
        f"{self.probability_bins} bins of {self.bin_by} probability over the "
        f"{self.statistics_scope}; ε detached"
    )
    if self.dual_clip is not None:
      text += f"; dual clip: cut where A < 0 and {r} > {self.dual_clip:g}"
    return text
