"""Importance ratios: from per-token log-ratios to what enters the surrogate.

A ratio maps clamped per-token log-ratios ℓ_t (nats) to log-ratios of the same
shape [B, T]. Which tokens carry gradient is part of its definition. Tokens
that a selection exempts are handed in as ℓ = 0 and leave every sum and mean.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import tokens as tokens_lib

Array = jax.Array

_CUMULATIVE_CAP = 10.0
_SUM_CAP = 20.0


def _through_current(sums: Array, log_ratios: Array) -> Array:
  """sg[sums] with the gradient of the token's own log-ratio."""
  current = log_ratios - jax.lax.stop_gradient(log_ratios)
  return jax.lax.stop_gradient(sums) + current


@dataclasses.dataclass(frozen=True)
class Token(parts.Part):
  """r_t = π(y_t|s_t) / anchor(y_t|s_t)."""

  formula = "log r_t = log π_t − log {anchor}_t"
  detached = ""
  shared = False

  def __call__(self, log_ratios: Array, where: masked.Layout) -> Array:
    return log_ratios


@dataclasses.dataclass(frozen=True)
class Cumulative(parts.Part):
  """r_{1:t} = Π_{j≤t} r_j (CTPO, arXiv 2605.07331); the prefix is detached."""

  formula = (
      "log r_{{1:t}} = sg[Σ_{{j≤t}} (log π_j − log {anchor}_j)]"
      " + log π_t − sg[log π_t], at most 10"
  )
  detached = "the prefix product: gradient through the current token only"
  shared = False

  def __call__(self, log_ratios: Array, where: masked.Layout) -> Array:
    sums = masked.running_sums(log_ratios, where)
    return masked.cap(_through_current(sums, log_ratios), _CUMULATIVE_CAP)


@dataclasses.dataclass(frozen=True)
class CumulativeMean(parts.Part):
  """Geometric mean of the prefix's ratios; the prefix is detached."""

  formula = (
      "log r̄_{{1:t}} = sg[(1/t) Σ_{{j≤t}} (log π_j − log {anchor}_j)]"
      " + log π_t − sg[log π_t], at most 10"
  )
  detached = "the running mean: gradient through the current token only"
  shared = False

  def __call__(self, log_ratios: Array, where: masked.Layout) -> Array:
    sums = masked.running_sums(log_ratios, where)
    means = sums / jnp.maximum(where.positions, 1.0)
    return masked.cap(_through_current(means, log_ratios), _CUMULATIVE_CAP)


@dataclasses.dataclass(frozen=True)
class Sequence(parts.Part):
  """Product over the whole response, at every token of it."""

  formula = "log s = Σ_j (log π_j − log {anchor}_j), at most 20"
  detached = ""
  shared = True

  def __call__(self, log_ratios: Array, where: masked.Layout) -> Array:
    return masked.cap(masked.sequence_sums(log_ratios, where), _SUM_CAP)


def _means(log_ratios: Array, where: masked.Layout) -> Array:
  sums = masked.sequence_sums(log_ratios, where)
  return sums / jnp.maximum(where.lengths, 1.0)


@dataclasses.dataclass(frozen=True)
class SequenceMean(parts.Part):
  """Geometric mean over the response (GSPO, arXiv 2507.18071)."""

  formula = "log s = (1/n) Σ_j (log π_j − log {anchor}_j), at most 20"
  detached = ""
  shared = True

  def __call__(self, log_ratios: Array, where: masked.Layout) -> Array:
    return masked.cap(_means(log_ratios, where), _SUM_CAP)


@dataclasses.dataclass(frozen=True)
class SequenceMeanToken(parts.Part):
  """GSPO-token: sg[s] π_t / sg[π_t]."""

  formula = (
      "log s_t = sg[(1/n) Σ_j (log π_j − log {anchor}_j)]"
      " + log π_t − sg[log π_t], at most 10"
  )
  detached = "the geometric mean: gradient through the current token only"
  shared = False

  def __call__(self, log_ratios: Array, where: masked.Layout) -> Array:
    means = _means(log_ratios, where)
    return masked.cap(_through_current(means, log_ratios), _CUMULATIVE_CAP)


RATIOS = {
    "token": Token,
    "cumulative": Cumulative,
    "cumulative_mean": CumulativeMean,
    "sequence": Sequence,
    "sequence_mean": SequenceMean,
    "sequence_mean_token": SequenceMeanToken,
}


@dataclasses.dataclass(frozen=True)
class NoSelection(parts.Part):
  """Every token takes part in the ratio."""

  words = ""
  topk = 0

  def exempt(self, tokens: tokens_lib.Tokens) -> Array:
    return jnp.zeros_like(tokens.layout.mask)


@dataclasses.dataclass(frozen=True)
class SelectiveImportanceSampling(parts.Part):
  """SIS (arXiv 2607.04728): a rejection test turns tokens on-policy.

  accept_t = (log u_t < ℓ_t − log M_t) or ℓ_t = 0, with
  M_t = max over the anchor's top-K of π(k)/anchor(k). An accepted token has
  ratio 1 and gradient ∇log π, and skips the trust region.
  """

  selection_topk: int = parts.key(
      100, "K of the sis envelope: top ids of the anchor policy", at_least=1
  )
  require_membership: bool = parts.key(
      False, "sis: reject every token outside the top-K whose ratio is not 1"
  )

  words = (
      "SIS: u_t ~ U(0,1); accepted when u_t < r_t / max over the top "
      "{selection_topk} of {anchor} of π/{anchor}, or r_t = 1; accepted "
      "tokens have ratio 1, gradient ∇log π and no trust region"
      " (require membership: {require_membership})"
  )

  @property
  def topk(self) -> int:
    return self.selection_topk

  def exempt(self, tokens: tokens_lib.Tokens) -> Array:
    return self.accepted(jnp.log(uniforms(tokens)), tokens)

  def accepted(self, log_uniforms: Array, tokens: tokens_lib.Tokens) -> Array:
    """bool [B, T]: which tokens pass for given log u_t (nats)."""
    terms = tokens.terms
    chosen = slice(0, self.selection_topk)
    live = terms.topk_logprobs[..., chosen]
    anchor = terms.topk_anchor_logprobs[..., chosen]
    clamp = tokens_lib.LOG_RATIO_CLAMP
    envelopes = jnp.max(masked.clamp(live - anchor, -clamp, clamp), axis=-1)
    log_ratios = tokens.log_ratios()
    accepted = log_uniforms < log_ratios - envelopes
    if self.require_membership:
      ids = terms.topk_ids[..., chosen]
      accepted &= jnp.any(ids == terms.tokens[..., None], axis=-1)
    accepted |= log_ratios == 0
    return accepted & tokens.layout.mask


def uniforms(tokens: tokens_lib.Tokens) -> Array:
  """u_t ~ U[0, 1) keyed by (step, record, position), never by batch index."""
  terms = tokens.terms

  def draw(record, position):
    key = jax.random.fold_in(terms.key, record)
    key = jax.random.fold_in(key, position)
    return jax.random.uniform(key, dtype=tokens.logprobs.dtype)

  positions = terms.response_positions.astype(jnp.uint32)
  return jax.vmap(jax.vmap(draw))(terms.record_ids, positions)


SELECTIONS = {"none": NoSelection, "sis": SelectiveImportanceSampling}
