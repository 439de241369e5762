"""The contract of an objective: requirements, denominators, apply, describe.

`apply` returns a weighted sum. All denominators are fixed by `denominators`
over the whole mini-batch before it is split, so micro-batches simply add.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.losses import advantages as advantages_lib
from jaxrl_llm.losses import corrections
from jaxrl_llm.losses import description
from jaxrl_llm.losses import diagnostics
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import positions
from jaxrl_llm.losses import regularizers
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import tokens as tokens_lib
from jaxrl_llm.losses import value

Array = jax.Array
Spec = spec_lib.Spec


@dataclasses.dataclass(frozen=True)
class Requirements:
  """What training must provide for a spec.

  Attributes:
    proximal: proximal_logprobs in the terms.
    versions: versions in the terms and the control `policy_version`.
    reference: reference log-probs, of the loss or of the reward.
    token_rewards: `advantages` needs the tokens of `token_rewards`.
    behavior_topk: K stored with the rollouts, 0 for none.
    proximal_topk: K recomputed with the proximal log-probs, 0 for none.
    entropy: live entropy in the terms.
    statistics: `statistics` must be summed before `apply`.
    pairs: sequence_scores and sequence_groups in the terms.
    key: a PRNG key, record ids and response positions in the terms.
    group_baseline: responses are compared within their group: groups of one
      are refused, those of equal rewards teach nothing.
    greedy_baseline: one greedy response per prompt.
    critic: what a critic says of a token, "state" or "action" (see
      advantages.Advantage); "" for no critic.
    bootstraps: the critic stands in for the reward of unfinished responses.
    correction_named: staleness behind a proximal anchor was addressed.
    stop_deviation: see `should_stop`; None never stops.
  """

  proximal: bool
  versions: bool
  reference: bool
  token_rewards: bool
  behavior_topk: int
  proximal_topk: int
  entropy: bool
  statistics: bool
  pairs: bool
  key: bool
  group_baseline: bool
  greedy_baseline: bool
  critic: str
  bootstraps: bool
  correction_named: bool
  stop_deviation: float | None


def requirements(spec: Spec) -> Requirements:
  """Says what training must provide for the spec."""
  behavior = spec.anchor == "behavior"
  corrected = spec.choice("weight") != "none" and not behavior
  rejects = spec.choice("rejection") != "none"
  topk = max(spec.selection.topk, spec.trust_region.topk)
  kl_reward = spec.shaping.kl_reward_coefficient > 0
  pairwise = spec.surrogate.pairwise
  reads_proximal = (
      spec.anchor == "proximal" or corrected or rejects or kl_reward
  )
  loglinear = spec.proximal == "loglinear"
  return Requirements(
      proximal=reads_proximal and not loglinear,
      versions=loglinear,
      reference=spec.anchor == "reference"
      or spec.regularizers.kl_coefficient > 0
      or kl_reward,
      token_rewards=kl_reward or spec.advantage.per_token,
      behavior_topk=topk if behavior else 0,
      proximal_topk=0 if behavior else topk,
      entropy=spec.regularizers.entropy_coefficient > 0,
      statistics=spec.trust_region.needs_statistics or pairwise,
      pairs=pairwise,
      key=spec.choice("selection") != "none",
      group_baseline=spec.advantage.group_baseline or pairwise,
      greedy_baseline=spec.advantage.greedy_baseline,
      critic=spec.advantage.critic,
      bootstraps=spec.advantage.critic == "state",
      correction_named=spec.anchor != "proximal" or spec.correction_named,
      stop_deviation=spec.stopping.stop_deviation,
  )


def should_stop(spec: Spec, metrics: Mapping[str, float]) -> bool:
  """Whether the epochs on this rollout batch end before the next update.

  Args:
    spec: the objective.
    metrics: finished metrics of the mini-batch about to update.
  """
  limit = spec.stopping.stop_deviation
  return limit is not None and metrics["ratio_deviation"] > limit


def advantages(
    spec: Spec,
    rewards: Array,
    group_ids: Array,
    lengths: Array,
    *,
    mask: Array | None = None,
    token_rewards: Array | None = None,
    greedy_rewards: Array | None = None,
    values: Array | None = None,
    unfinished: Array | None = None,
) -> Array:
  """Advantages of the N sequences of a rollout batch.

  Args:
    spec: the objective.
    rewards: float [N], NaN where the verifier failed.
    group_ids: int [N] in [0, N).
    lengths: [N], response tokens (True in the mask).
    mask: bool [N, T] response tokens, where requirements.token_rewards.
    token_rewards: float [N, T] from `token_rewards`, or None.
    greedy_rewards: float [N], where requirements.greedy_baseline.
    values: float [N, T], where requirements.critic.
    unfinished: bool [N], responses without a reward yet, where
      requirements.bootstraps.

  Returns:
    float [N], or [N, T] where requirements.token_rewards and the advantage
    depends on the token. 0 where the reward is not finite.
  """
  return spec.advantage(
      _episodes(
          spec,
          rewards,
          lengths,
          groups=jnp.asarray(group_ids, jnp.int32),
          mask=mask,
          token_rewards=token_rewards,
          greedy_rewards=greedy_rewards,
          values=values,
          unfinished=unfinished,
      )
  )


def value_targets(
    spec: Spec,
    rewards: Array,
    lengths: Array,
    *,
    mask: Array,
    values: Array,
    token_rewards: Array | None = None,
    unfinished: Array | None = None,
) -> Array:
  """What the critic learns, float [N, T]; arguments as in `advantages`."""
  episodes = _episodes(
      spec,
      rewards,
      lengths,
      groups=jnp.zeros(len(lengths), jnp.int32),
      mask=mask,
      token_rewards=token_rewards,
      values=values,
      unfinished=unfinished,
  )
  return spec.advantage.targets(episodes)


def _episodes(spec, rewards, lengths, **fields) -> advantages_lib.Episodes:
  scores = shape_rewards(spec, rewards, lengths)
  lengths = jnp.asarray(lengths, scores.dtype)
  return advantages_lib.Episodes(scores=scores, lengths=lengths, **fields)


def value_weights(spec: Spec, terms: types.Terms) -> Array:
  """Per-token weights of the value loss, over the whole mini-batch, [B, T]."""
  return value.weights(spec.aggregation, terms)


def value_loss(
    spec: Spec, terms: types.Terms, weights: Array
) -> types.LossOutput:
  """The critic's loss on a micro-batch; see value.apply."""
  return value.apply(spec.advantage, terms, weights)


def shape_rewards(spec: Spec, rewards: Array, lengths: Array) -> Array:
  """float [N]: rewards with the overlong penalty of the spec, if any."""
  rewards = jnp.asarray(rewards)
  if spec.shaping.overlong_limit is None:
    return rewards
  return rewards + spec.shaping.overlong(jnp.asarray(lengths, rewards.dtype))


def token_rewards(
    spec: Spec, proximal: Array, reference: Array, mask: Array
) -> Array:
  """−β (log proximal − log reference) per token, 0 where masked, nats × β."""
  gaps = masked.fill(proximal, mask) - masked.fill(reference, mask)
  return -spec.shaping.kl_reward_coefficient * gaps


def describe(spec: Spec) -> str:
  """The objective in words and as a formula, with every number."""
  return description.describe(spec)


def denominators(
    spec: Spec, terms: types.Terms, weigh_all: bool = False
) -> dict[str, Array]:
  """Per-token weights of each loss term, over the whole mini-batch.

  Args:
    spec: the objective.
    terms: of the whole mini-batch; live fields are not read.
    weigh_all: curation weights multiply every term, not the policy loss
      alone: what is left of a mini-batch stands for all of it.

  Returns:
    Arrays [B, T] by term name: `policy`, and `kl`, `entropy`, `positive` where
    the spec has them; 0 where masked or rejected. Split with the rows.
  """
  names = [
      name
      for name in ("kl", "entropy")
      if getattr(spec.regularizers, f"{name}_coefficient")
  ]
  spec = spec_lib.with_controls(spec, terms.controls)
  terms = tokens_lib.selected(spec, terms)
  dtype = tokens_lib.recorded_dtype(terms)
  everything = masked.layout(terms.mask, terms.segment_ids, dtype)
  kept = tokens_lib.kept(spec, terms, everything)
  counted = everything
  if spec.rejection.shrinks:
    counted = masked.restrict(everything, kept)
  policy = masked.fill(spec.aggregation.weights(counted), kept)
  if spec.weight.normalized:
    valid = masked.restrict(everything, kept)
    weights = spec.weight(tokens_lib.log_weights(terms, valid), valid)
    policy = policy / corrections.mean_weight(weights, valid, spec.weight.level)
  if terms.weights is not None:
    policy = policy * masked.fill(terms.weights, kept)
  result = {"policy": policy}
  for name in names:
    result[name] = spec.aggregation.weights(everything)
    if weigh_all and terms.weights is not None:
      result[name] *= masked.fill(terms.weights, terms.mask)
  if spec.regularizers.positive_coefficient:
    result["positive"] = _positive_weights(terms, everything, weigh_all)
  return result


def _positive_weights(
    terms: types.Terms, everything: masked.Layout, weigh_all: bool
) -> Array:
  """Mean over the tokens of responses with a reward above 0."""
  rewarded = masked.restrict(everything, terms.rewards > 0)
  weights = masked.TokenMean().weights(rewarded)
  if weigh_all and terms.weights is not None:
    weights *= masked.fill(terms.weights, terms.mask)
  return weights


def statistics(spec: Spec, terms: types.Terms) -> Any:
  """Sums over a micro-batch, from a gradient-free first pass; they add.

  Only for a spec whose requirements ask for them.
  """
  spec = spec_lib.with_controls(spec, terms.controls)
  terms = tokens_lib.with_proximal(spec, tokens_lib.selected(spec, terms))
  tokens = tokens_lib.view(spec, terms)
  if spec.surrogate.pairwise:
    return jax.lax.stop_gradient(spec.surrogate.statistics(tokens))
  log_ratios, _ = tokens_lib.ratio_logs(spec, tokens)
  sums = spec.trust_region.statistics(log_ratios, tokens)
  return jax.lax.stop_gradient(sums)


def verdict(
    spec: Spec, terms: types.Terms, statistics: Any = None
) -> tuple[tokens_lib.Tokens, Array, Array, surrogates.Region]:
  """What ratio part and trust region say of each token.

  Args:
    spec: the objective, with the numbers of its controls.
    terms: of one micro-batch, with live and proximal log-probs.
    statistics: of the whole mini-batch, where required.

  Returns:
    (what the parts see, log-ratios [B, T] of the ratio part, bool [B, T] of
    tokens that a selection exempted, the trust region's verdict).
  """
  tokens = tokens_lib.view(spec, terms)
  log_ratios, exempt = tokens_lib.ratio_logs(spec, tokens)
  region = spec.trust_region(log_ratios, tokens, statistics)
  return tokens, log_ratios, exempt, region.exempting(exempt)


def token_losses(
    spec: Spec, terms: types.Terms, statistics: Any = None
) -> tuple[Array, dict[str, Any]]:
  """Policy loss of each token, before aggregation.

  Args:
    spec: the objective.
    terms: of one micro-batch, with live log-probs.
    statistics: of the whole mini-batch, where required.

  Returns:
    (losses [B, T], metrics); 0 where masked or rejected.
  """
  return _token_losses(spec, terms, statistics)[:2]


def _token_losses(
    spec: Spec, terms: types.Terms, statistics: Any
) -> tuple[Array, dict[str, Any], positions.Seen]:
  """`token_losses`, and what the diagnostics by position read."""
  spec = spec_lib.with_controls(spec, terms.controls)
  terms = tokens_lib.with_proximal(spec, tokens_lib.selected(spec, terms))
  tokens, log_ratios, exempt, region = verdict(spec, terms, statistics)
  ratios = jnp.exp(log_ratios)
  compared = {}
  if spec.surrogate.pairwise:
    losses, compared = spec.surrogate.losses(tokens, statistics)
  else:
    losses = spec.surrogate(
        ratios, region, tokens.advantages, tokens.logprobs
    )
  weighed = spec.surrogate.weighed(ratios, region, tokens.advantages)
  metrics = diagnostics.of_ratios(log_ratios, weighed, exempt, tokens)
  metrics |= compared
  factors = spec.surrogate.factors(weighed)
  if spec.choice("weight") != "none":
    log_weights = tokens_lib.correction_logs(spec, tokens)
    weights = spec.weight(log_weights, tokens.layout)
    losses, factors = losses * weights, factors * weights
    metrics["correction"] = types.Moments.of(weights, tokens.layout.mask)
    level = corrections.at_level(log_weights, tokens.layout, spec.weight.level)
    cut = weights < jnp.exp(level)
    metrics["correction_cut"] = types.Mean.of(cut, tokens.layout.mask)
  if spec.choice("rejection") != "none":
    rejected = ~tokens.layout.mask
    metrics["rejected"] = types.Mean.of(rejected, terms.mask)
  seen = positions.Seen(tokens, log_ratios, region, factors)
  return masked.fill(losses, tokens.layout.mask), metrics, seen


def apply(
    spec: Spec,
    terms: types.Terms,
    weights: Mapping[str, Array],
    statistics: Any = None,
) -> types.LossOutput:
  """The optimised scalar of one micro-batch and its metrics.

  Args:
    spec: the objective.
    terms: of the micro-batch, with live log-probs.
    weights: rows of `denominators` that belong to the micro-batch.
    statistics: sums over the mini-batch, where required.
  """
  terms = tokens_lib.selected(spec, terms)
  losses, metrics, seen = _token_losses(spec, terms, statistics)
  metrics["positions"] = positions.of_microbatch(spec, seen, weights["policy"])
  sums = {"policy": jnp.sum(losses * weights["policy"])}
  static = spec.regularizers
  numbers = spec_lib.with_controls(spec, terms.controls).regularizers
  if static.kl_coefficient:
    live = masked.fill(terms.logprobs, terms.mask)
    reference = masked.fill(terms.reference_logprobs, terms.mask)
    kl = regularizers.ESTIMATORS[static.kl_estimator](live, reference)
    sums["kl"] = numbers.kl_coefficient * jnp.sum(kl * weights["kl"])
    metrics["kl/reference"] = types.Mean.of(
        jax.lax.stop_gradient(kl), terms.mask
    )
  if static.entropy_coefficient:
    entropy = masked.fill(terms.entropy, terms.mask)
    bonus = jnp.sum(entropy * weights["entropy"])
    sums["entropy"] = -numbers.entropy_coefficient * bonus
  if static.positive_coefficient:
    live = masked.fill(terms.logprobs, terms.mask)
    nll = -jnp.sum(live * weights["positive"])
    sums["positive"] = numbers.positive_coefficient * nll
  resolved = tokens_lib.with_proximal(spec, terms)
  metrics |= diagnostics.of_policies(resolved, terms.mask)
  metrics |= diagnostics.of_losses(sums)
  return types.LossOutput(sum(sums.values()), metrics)
