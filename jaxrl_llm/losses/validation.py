"""Combinations of parts without meaning, each refused with its reason."""

from jaxrl_llm.losses import corrections
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import trust_regions
from jaxrl_llm.losses.spec import Spec


def validate(spec: Spec) -> None:
  """Raises ValueError with the first reason why the spec has no meaning."""
  for rule in (
      _preferences,
      _corrections,
      _proximal,
      _surrogates,
      _selection,
      _regions,
      _denominators,
  ):
    reason = rule(spec)
    if reason:
      raise ValueError(f"objective {spec.name}: {reason}")


def _preferences(spec: Spec) -> str:
  if not spec.surrogate.pairwise:
    if spec.anchor != "reference":
      return ""
    return (
        "anchor=reference serves surrogate=preference alone: no step is taken "
        "from the reference; use anchor=proximal and kl_coefficient, or "
        "name=dpo."
    )
  if spec.anchor != "reference":
    return (
        f"anchor={spec.anchor} with surrogate=preference: pairs are compared "
        "against the reference; use anchor=reference (without bypass)."
    )
  words = {
      "ratio": ("token", "a pair compares sums over whole responses"),
      "selection": ("none", "no token of a response is exempt from its sum"),
      "trust_region": ("none", "β alone holds the policy to the reference"),
      "aggregation": ("token-sum", "the mean over pairs is in the loss"),
      "advantage": ("reward", "pairs are told by the reward itself"),
  }
  for slot, (word, why) in words.items():
    if spec.choice(slot) != word:
      return (
          f"{slot}={spec.choice(slot)} with surrogate=preference: {why}; use "
          f"{slot}={word}."
      )
  return _beside_preferences(spec)


def _beside_preferences(spec: Spec) -> str:
  for slot in ("weight", "rejection"):
    if spec.choice(slot) != "none":
      return (
          f"correction={spec.choice(slot)} with surrogate=preference: a pair "
          "asks of no policy that drew it; use correction=none."
      )
  coefficients = {
      "kl_coefficient": spec.regularizers.kl_coefficient,
      "entropy_coefficient": spec.regularizers.entropy_coefficient,
      "kl_reward_coefficient": spec.shaping.kl_reward_coefficient,
  }
  for key, value in coefficients.items():
    if value:
      return (
          f"{key} with surrogate=preference: the loss is a mean over pairs, "
          "and β holds it to the reference; set it to 0 and dpo_beta instead."
      )
  return ""


def _corrections(spec: Spec) -> str:
  if spec.anchor != "behavior":
    return ""
  weight = spec.choice("weight")
  on_ratio = weight in ("tis", "icepop") and spec.weighs_live_ratio
  if weight != "none" and not on_ratio:
    return (
        f"correction={weight} with anchor=behavior applies w twice: the ratio "
        "live/behavior already contains w = proximal/behavior; use "
        "anchor=proximal or correction=none."
    )
  if on_ratio and spec.weight.normalized:
    return (
        "correction_normalize with anchor=behavior needs the live ratio of "
        "the whole mini-batch; set it to False."
    )
  if isinstance(spec.rejection, corrections.Rejection):
    return (
        "correction=rejection with anchor=behavior rejects nothing: without a "
        "proximal policy w is 1 everywhere; use anchor=proximal."
    )
  return ""


def _proximal(spec: Spec) -> str:
  if spec.proximal == "recomputed":
    return ""
  if spec.anchor != "proximal":
    return (
        "proximal=loglinear is read by nothing with "
        f"anchor={spec.anchor}; remove it."
    )
  needs = {
      "a rejection": isinstance(spec.rejection, corrections.Rejection),
      "correction_normalize": spec.weight.normalized,
      "a top-K": max(spec.selection.topk, spec.trust_region.topk) > 0,
      "kl_reward_coefficient": spec.shaping.kl_reward_coefficient > 0,
  }
  for what, needed in needs.items():
    if needed:
      return (
          f"{what} reads the proximal policy before the update, which "
          "proximal=loglinear does not know; use proximal=recomputed."
      )
  return ""


def _surrogates(spec: Spec) -> str:
  region, surrogate = spec.trust_region, spec.surrogate
  if isinstance(surrogate, surrogates.Sigmoid) and not isinstance(
      region, trust_regions.NoRegion
  ):
    return (
        "surrogate=sigmoid is its own smooth trust region; set "
        "trust_region=none."
    )
  weighted = isinstance(surrogate, surrogates.WeightedLogProb)
  if isinstance(region, trust_regions.Taper) and not weighted:
    return (
        "trust_region=taper bounds a detached weight; use "
        "surrogate=weighted_log_prob."
    )
  if weighted and None not in (surrogate.weight_min, surrogate.weight_max):
    if surrogate.weight_min > surrogate.weight_max:
      return (
          f"weight_min = {surrogate.weight_min:g} exceeds weight_max = "
          f"{surrogate.weight_max:g}."
      )
  return ""


def _selection(spec: Spec) -> str:
  if spec.selects and spec.shaping.kl_reward_coefficient > 0:
    return (
        "advantage=imitation asks of the reward whether a response is "
        "imitated, not how far it went; set kl_reward_coefficient to 0 or use "
        "kl_coefficient."
    )
  return ""


def _regions(spec: Spec) -> str:
  region = spec.trust_region
  if isinstance(region, trust_regions.PositionClip) and spec.ratio.shared:
    return (
        "trust_region=position_clip grows with the token's position, but "
        f"ratio={spec.choice('ratio')} has one value per sequence; use "
        "ratio=cumulative or trust_region=clip."
    )
  return ""


def _denominators(spec: Spec) -> str:
  mode = spec.aggregation
  if isinstance(mode, masked.SequenceMeanTokenSumNorm):
    if mode.horizon is None:
      return (
          "aggregation=seq-mean-token-sum-norm divides by a horizon; set "
          "objective.horizon in tokens, for example sampling.max_new_tokens."
      )
  rejection = spec.rejection
  if isinstance(rejection, corrections.Rejection):
    low = rejection.rejection_low
    if low is not None and low > rejection.rejection_high:
      return (
          f"rejection_low = {low:g} exceeds rejection_high = "
          f"{rejection.rejection_high:g}."
      )
  weight = spec.weight
  if isinstance(weight, corrections.IcePop):
    if weight.correction_low > weight.correction_high:
      return (
          f"correction_low = {weight.correction_low:g} exceeds "
          f"correction_high = {weight.correction_high:g}."
      )
  shaping = spec.shaping
  if shaping.overlong_limit is not None:
    if shaping.overlong_buffer > shaping.overlong_limit:
      return (
          f"overlong_buffer = {shaping.overlong_buffer} exceeds "
          f"overlong_limit = {shaping.overlong_limit} tokens."
      )
  return ""
