"""What the parts of a policy objective see of one micro-batch."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.losses import masked

Array = jax.Array

# Each token's log-ratio is clamped to ± this many nats before any sum.
LOG_RATIO_CLAMP = 20.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
  """Masked log-probs of one micro-batch; all float arrays are [B, T].

  Attributes:
    layout: where the response tokens of each sequence lie.
    logprobs: live log π, nats, 0 where masked; the differentiable input.
    anchor_logprobs: log-probs of the anchor policy, nats, 0 where masked.
    advantages: A_t, 0 where masked; a constant.
    terms: everything else, masked entries undefined.
  """

  layout: masked.Layout
  logprobs: Array
  anchor_logprobs: Array
  advantages: Array
  terms: types.Terms

  @property
  def detached_logprobs(self) -> Array:
    """Live log π without its gradient."""
    return jax.lax.stop_gradient(self.logprobs)

  def log_ratios(self) -> Array:
    """Clamped ℓ_t = log π_t − log anchor_t; gradient 0 beyond the clamp."""
    return masked.clamp(
        self.logprobs - self.anchor_logprobs,
        -LOG_RATIO_CLAMP,
        LOG_RATIO_CLAMP,
    )


def recorded_dtype(terms: types.Terms) -> jnp.dtype:
  """Float type of the recorded log-probs."""
  names = [f"{name}_logprobs" for name in ("proximal", "behavior", "reference")]
  for name in names:
    if getattr(terms, name) is not None:
      return getattr(terms, name).dtype
  raise ValueError(f"terms: expected one of {', '.join(names)}, found none.")


def log_weights(terms: types.Terms, where: masked.Layout) -> Array:
  """Clamped log w = log proximal − log behavior, 0 where masked, [B, T]."""
  gaps = masked.fill(terms.proximal_logprobs, where.mask) - masked.fill(
      terms.behavior_logprobs, where.mask
  )
  return masked.clamp(gaps, -LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)


def loglinear_proximal(
    logprobs: Array, behavior: Array, version: Array, versions: Array
) -> Array:
  """AReaL's stand-in for a recomputed proximal policy, detached.

  log prox = log μ + a (log π − log μ), a = (v − 1 − v_μ) / (v − v_μ): one
  update behind the live policy of version v; a = 0 on tokens that are as new.

  Args:
    logprobs: float [B, T], live log π, nats.
    behavior: float [B, T], log μ, nats.
    version: scalar v, updates behind the live policy.
    versions: int [B, T], v_μ of the policy that drew each token.
  """
  lag = (version - versions).astype(behavior.dtype)
  share = jnp.clip((lag - 1.0) / jnp.maximum(lag, 1.0), 0.0, 1.0)
  live = jax.lax.stop_gradient(logprobs)
  return behavior + share * (live - behavior)


def with_proximal(spec: Any, terms: types.Terms) -> types.Terms:
  """The terms with the proximal log-probs that the spec asks for."""
  if spec.proximal == "recomputed":
    return terms
  if "policy_version" not in terms.controls or terms.versions is None:
    raise ValueError(
        "terms: proximal=loglinear expects versions and the control "
        "policy_version, found neither or one; pass both."
    )
  proximal = loglinear_proximal(
      masked.fill(terms.logprobs, terms.mask),
      masked.fill(terms.behavior_logprobs, terms.mask),
      terms.controls["policy_version"],
      masked.fill(terms.versions, terms.mask),
  )
  return dataclasses.replace(terms, proximal_logprobs=proximal)


def selected(spec: Any, terms: types.Terms) -> types.Terms:
  """The terms less the responses that the spec's advantage leaves out."""
  if not spec.selects:
    return terms
  chosen = masked.fill(terms.advantages, terms.mask) > 0
  return dataclasses.replace(terms, mask=terms.mask & chosen)


def correction_logs(spec: Any, tokens: Tokens) -> Array:
  """Log-weights that the correction reads; log ρ in bypass REINFORCE."""
  if spec.weighs_live_ratio:
    return jax.lax.stop_gradient(tokens.log_ratios())
  return log_weights(tokens.terms, tokens.layout)


def kept(spec: Any, terms: types.Terms, where: masked.Layout) -> Array:
  """bool [B, T]: response tokens that no rejection removed."""
  if spec.choice("rejection") == "none":
    return where.mask
  return spec.rejection.keeps(log_weights(terms, where), where)


def view(spec: Any, terms: types.Terms) -> Tokens:
  """What the parts of a spec see: masked, rejected tokens taken out."""
  wanted = max(spec.selection.topk, spec.trust_region.topk)
  stored = 0 if terms.topk_ids is None else terms.topk_ids.shape[-1]
  if stored < wanted:
    raise ValueError(
        f"terms: expected the top {wanted} ids of the {spec.anchor} policy, "
        f"found {stored}; record them or lower objective.selection_topk or "
        "objective.divergence_topk."
    )
  where = masked.layout(terms.mask, terms.segment_ids, terms.logprobs.dtype)
  if spec.choice("rejection") != "none":
    where = masked.restrict(where, kept(spec, terms, where))
  anchor = getattr(terms, f"{spec.anchor}_logprobs")
  return Tokens(
      layout=where,
      logprobs=masked.fill(terms.logprobs, where.mask),
      anchor_logprobs=jax.lax.stop_gradient(masked.fill(anchor, where.mask)),
      advantages=jax.lax.stop_gradient(
          masked.fill(terms.advantages, where.mask)
      ),
      terms=terms,
  )


def ratio_logs(spec: Any, tokens: Tokens) -> tuple[Array, Array]:
  """(log-ratios [B, T] of the ratio part, exempt mask of the selection)."""
  log_ratios = tokens.log_ratios()
  exempt = spec.selection.exempt(tokens)
  if spec.choice("selection") == "none":
    return spec.ratio(log_ratios, tokens.layout), exempt
  where = masked.restrict(tokens.layout, ~exempt)
  log_ratios = spec.ratio(masked.fill(log_ratios, where.mask), where)
  on_policy = tokens.logprobs - tokens.detached_logprobs
  return jnp.where(exempt, on_policy, log_ratios), exempt
