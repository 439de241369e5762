"""Off-policy diagnostics of a micro-batch, as sums that merge."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import tokens as tokens_lib

Array = jax.Array


def of_ratios(
    log_ratios: Array,
    region: surrogates.Region,
    exempt: Array,
    tokens: tokens_lib.Tokens,
) -> dict[str, Any]:
  """Ratios before and after trust region and surrogate, and what was cut.

  Args:
    log_ratios: float [B, T], what the ratio part made, nats.
    region: the trust region's verdict, weighed by the surrogate.
    exempt: bool [B, T], tokens that a selection exempted.
    tokens: the micro-batch.

  Returns:
    Metric sums over response tokens; `clip/SIDE_SIGN` is the share of all of
    them that is cut with the ratio on SIDE of 1 and the advantage of SIGN.
  """
  mask, advantages = tokens.layout.mask, tokens.advantages
  log_ratios = jax.lax.stop_gradient(log_ratios)
  ratios = jnp.exp(log_ratios)
  after = region.values * region.gates
  metrics = {
      "ratio": types.Moments.of(ratios, mask),
      "ratio_max": types.Max.of(ratios, mask),
      "ratio_deviation": types.Mean.of(jnp.abs(ratios - 1.0), mask),
      "log_ratio": types.Histogram.of(log_ratios, mask),
      "ratio_after": types.Moments.of(after, mask),
      "ratio_after_max": types.Max.of(after, mask),
      "clip": types.Mean.of(~region.active, mask),
      "gate": types.Mean.of(region.gates, mask & region.active),
      "exempt": types.Mean.of(exempt, mask),
      "tokens": types.Sum(jnp.sum(mask, dtype=jnp.float32)),
  }
  for side, on_side in (("high", log_ratios > 0), ("low", log_ratios < 0)):
    for sign, of_sign in (
        ("positive", advantages > 0),
        ("negative", advantages < 0),
    ):
      cut = ~region.active & on_side & of_sign
      metrics[f"clip/{side}_{sign}"] = types.Mean.of(cut, mask)
  if region.budget_shares is not None:
    shares = region.budget_shares
    metrics["budget"] = types.Mean.of(shares, mask)
    metrics["budget_max"] = types.Max.of(shares, mask)
  return metrics


def of_policies(
    terms: types.Terms, mask: Array
) -> dict[str, Any]:
  """Distance of the live policy to the recorded ones, on response tokens.

  With q a recorded policy, k1 = log q − log π and k3 = π/q − 1 − log(π/q)
  estimate KL(q‖π) on tokens that q drew, and ½ |π/q − 1| their total
  variation. `ess` pools π/behavior.
  """
  live = jnp.where(mask, jax.lax.stop_gradient(terms.logprobs), 0.0)
  metrics = {}
  for name in ("behavior", "proximal"):
    recorded = getattr(terms, f"{name}_logprobs")
    if recorded is None:
      continue
    gaps = live - jnp.where(mask, recorded, 0.0)
    clamp = tokens_lib.LOG_RATIO_CLAMP
    clamped = jnp.clip(gaps, -clamp, clamp)
    metrics[f"kl/{name}_k1"] = types.Mean.of(-gaps, mask)
    k3 = jnp.exp(clamped) - 1.0 - clamped
    metrics[f"kl/{name}_k3"] = types.Mean.of(k3, mask)
    tv = 0.5 * jnp.abs(jnp.exp(clamped) - 1.0)
    metrics[f"tv/{name}"] = types.Mean.of(tv, mask)
    metrics[f"log_ratio/{name}"] = types.Histogram.of(clamped, mask)
    metrics[f"log_ratio_max/{name}"] = types.Max.of(jnp.abs(gaps), mask)
    if name == "behavior":
      metrics["ess"] = types.Moments.of(jnp.exp(clamped), mask)
  if terms.entropy is not None:
    entropy = jax.lax.stop_gradient(terms.entropy)
    metrics["entropy"] = types.Mean.of(entropy, mask)
  return metrics


def of_losses(losses: Mapping[str, Array]) -> dict[str, Any]:
  """The weighted sums that make up the loss; they add to `loss`."""
  detached = {k: jax.lax.stop_gradient(v) for k, v in losses.items()}
  metrics = {f"loss/{name}": types.Sum(v) for name, v in detached.items()}
  metrics["loss"] = types.Sum(sum(detached.values()))
  return metrics
