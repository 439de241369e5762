"""An objective in words and as a formula, with every number."""

import dataclasses

from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.losses import surrogates

_RATIOS = {
    "token": "r_t",
    "cumulative": "r_{1:t}",
    "cumulative_mean": "r̄_{1:t}",
    "sequence": "s",
    "sequence_mean": "s",
    "sequence_mean_token": "s_t",
}


def describe(spec: spec_lib.Spec) -> str:
  """Returns one line per part of the objective."""
  anchor = spec.anchor
  symbol = _RATIOS[spec.choice("ratio")]
  surrogate = _surrogate(spec, symbol)
  lines = [
      ("objective", spec.name),
      ("loss", _loss(spec)),
      ("anchor", f"{anchor} ({_anchor(spec)})"),
      ("ratio", _ratio(spec)),
      ("clamp", _clamp(spec)),
      ("detached", _detached(spec)),
      ("selection", _selection(spec)),
      ("surrogate", surrogate),
      ("trust region", _region(spec, symbol)),
      ("correction", _correction(spec)),
      ("denominator", _denominator(spec)),
      ("regularizers", spec.regularizers.describe()),
      ("rewards", spec.shaping.describe()),
      ("advantage", spec.advantage.describe()),
      ("early stop", spec.stopping.describe()),
  ]
  return "\n".join(f"{name:<13} {text}" for name, text in lines)


def _loss(spec: spec_lib.Spec) -> str:
  if not spec.surrogate.pairwise:
    return "L = Σ_it a_it w_it ℓ_it + regularizers, minimised"
  return spec.surrogate.describe()


def _clamp(spec: spec_lib.Spec) -> str:
  if spec.surrogate.pairwise:
    return "none in the loss; token log-ratios to ±20 nats in the metrics"
  return "token log-ratios to ±20 nats; gradient 0 beyond a cap"


def _anchor(spec: spec_lib.Spec) -> str:
  if spec.anchor == "reference":
    return "frozen; train.reference, else the start policy"
  if spec.anchor == "behavior":
    return "recorded while sampling"
  if spec.proximal == "loglinear":
    return "log-linear between behavior and π, one version behind π; detached"
  return "recomputed once before the first update on the batch"


def _ratio(spec: spec_lib.Spec) -> str:
  formula = spec.ratio.formula.format(anchor=spec.anchor)
  reads = (
      not isinstance(spec.surrogate, surrogates.LogProb)
      or spec.choice("trust_region") != "none"
      or spec.weighs_live_ratio
      and spec.choice("weight") != "none"
  )
  return formula if reads else f"{formula}; in the metrics alone"


def _surrogate(spec: spec_lib.Spec, symbol: str) -> str:
  part = spec.surrogate
  if isinstance(part, surrogates.WeightedLogProb):
    low = "0" if part.weight_min is None else f"{part.weight_min:g}"
    high = "∞" if part.weight_max is None else f"{part.weight_max:g}"
    return part.formula.format(r=symbol, bounds=f"[{low}, {high}]")
  return part.formula.format(r=symbol, **dataclasses.asdict(part))


def _region(spec: spec_lib.Spec, symbol: str) -> str:
  text = spec.trust_region.describe(symbol, spec.anchor)
  kept = spec.trust_region.kept
  if not kept:
    return text
  if spec.surrogate.keeps_values:
    return f"{text}; there the loss keeps {kept}"
  return f"{text}; there the loss is 0"


def _detached(spec: spec_lib.Spec) -> str:
  found = [spec.surrogate.detached or spec.ratio.detached]
  if spec.choice("trust_region") != "none":
    found.append("what the trust region decides")
  if spec.choice("weight") != "none":
    found.append("the correction w")
  found.append("A")
  return "; ".join(f for f in found if f)


def _selection(spec: spec_lib.Spec) -> str:
  if spec.choice("selection") == "none":
    return "none"
  part = spec.selection
  return part.words.format(
      anchor=spec.anchor,
      selection_topk=part.selection_topk,
      require_membership=part.require_membership,
  )


def _correction(spec: spec_lib.Spec) -> str:
  ratio = "live/behavior" if spec.weighs_live_ratio else "proximal/behavior"
  words = f"{spec.weight.describe()}; {spec.rejection.describe()}"
  if words == "weight: none; rejection: none":
    return "none"
  return f"w = {ratio}; {words}"


def _denominator(spec: spec_lib.Spec) -> str:
  part = spec.aggregation
  formula = part.formula
  if spec.choice("aggregation") == "seq-mean-token-sum-norm":
    formula = formula.format(horizon=part.horizon)
  return f"{formula}: {part.words}"
