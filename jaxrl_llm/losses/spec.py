"""The declarative spec of a policy objective, and how keys change it."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from jaxrl_llm.losses import adaptive
from jaxrl_llm.losses import advantages
from jaxrl_llm.losses import budgets
from jaxrl_llm.losses import corrections
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import preference
from jaxrl_llm.losses import ratios
from jaxrl_llm.losses import regularizers
from jaxrl_llm.losses import supervised
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import token_advantages
from jaxrl_llm.losses import trust_regions
from jaxrl_llm.losses import value

ANCHORS = ("proximal", "behavior", "reference")
PROXIMALS = ("recomputed", "loglinear")
# Control that carries the live policy's version, not a number of a part.
VERSION_CONTROL = "policy_version"

TRUST_REGIONS = {
    "none": trust_regions.NoRegion,
    "clip": trust_regions.Clip,
    "position_clip": trust_regions.PositionClip,
    "prefix_budget": budgets.PrefixBudget,
    "divergence": trust_regions.DivergenceMask,
    "product_clip": trust_regions.ProductClip,
    "adaptive_clip": adaptive.AdaptiveClip,
    "taper": trust_regions.Taper,
}

SURROGATES = surrogates.SURROGATES | preference.SURROGATES
ADVANTAGES = (
    advantages.ADVANTAGES
    | token_advantages.TOKEN_ADVANTAGES
    | value.CRITIC_ADVANTAGES
    | supervised.ADVANTAGES
)

# Keys that choose a part, and the parts on offer.
SLOTS = {
    "ratio": (ratios.RATIOS, "how token ratios combine"),
    "selection": (ratios.SELECTIONS, "wrapper that exempts tokens"),
    "surrogate": (SURROGATES, "loss of a token"),
    "trust_region": (TRUST_REGIONS, "which tokens an update may move"),
    "aggregation": (masked.AGGREGATIONS, "denominator of the policy loss"),
    "advantage": (ADVANTAGES, "advantage of a response"),
}
CORRECTION_WORDS = ("none", "tis", "icepop", "decoupled", "rejection", "bypass")
_ALIASES = {"mis": "rejection"}


@dataclasses.dataclass(frozen=True)
class Stopping(parts.Part):
  """When the epochs over a rollout batch end early."""

  stop_deviation: float | None = parts.key(
      None,
      "epochs on a rollout batch end before an update whose token mean of"
      " |ratio − 1| exceeds this; unset: never",
      above=0.0,
  )

  def describe(self) -> str:
    if self.stop_deviation is None:
      return "none"
    return (
        "epochs end before an update whose token mean of |ratio − 1| exceeds "
        f"{self.stop_deviation:g}"
    )


@dataclasses.dataclass(frozen=True)
class Spec:
  """A policy objective as named parts; hashable, static under jit.

  `correction_named` says that the off-policy gap of the proximal policy was
  addressed in words (a correction, bypass or `none`).
  """

  name: str
  anchor: str = "proximal"
  proximal: str = "recomputed"
  ratio: parts.Part = ratios.Token()
  selection: parts.Part = ratios.NoSelection()
  surrogate: parts.Part = surrogates.Ratio()
  trust_region: parts.Part = trust_regions.Clip()
  weight: parts.Part = corrections.NoWeight()
  rejection: parts.Part = corrections.NoRejection()
  aggregation: parts.Part = masked.TokenMean()
  regularizers: parts.Part = regularizers.Regularizers()
  advantage: parts.Part = advantages.GroupStd()
  shaping: parts.Part = advantages.Shaping()
  stopping: parts.Part = Stopping()
  correction_named: bool = False

  def parts(self) -> dict[str, parts.Part]:
    """The parts by field name."""
    values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return {k: v for k, v in values.items() if isinstance(v, parts.Part)}

  def choice(self, slot: str) -> str:
    """The config word of the part in a slot."""
    part = getattr(self, slot)
    options = SLOTS[slot][0] if slot in SLOTS else {
        "weight": corrections.WEIGHTS, "rejection": corrections.REJECTIONS
    }[slot]
    return next(word for word, kind in options.items() if kind is type(part))

  @property
  def selects(self) -> bool:
    """Whether responses with advantage 0 are left out of every term."""
    return isinstance(self.advantage, supervised.Imitation)

  @property
  def weighs_live_ratio(self) -> bool:
    """Bypass REINFORCE: the correction acts on live / behavior itself."""
    return self.anchor == "behavior" and isinstance(
        self.surrogate, surrogates.LogProb
    )


def all_parts() -> list[tuple[str, str, type[parts.Part]]]:
  """(slot, word, class) of every part that has keys of its own."""
  found = [
      (slot, word, kind)
      for slot, (options, _) in SLOTS.items()
      for word, kind in options.items()
  ]
  for options in (corrections.WEIGHTS, corrections.REJECTIONS):
    found += [("correction", word, kind) for word, kind in options.items()]
  found.append(("regularizers", "", regularizers.Regularizers))
  found.append(("shaping", "", advantages.Shaping))
  found.append(("stopping", "", Stopping))
  return found


def known_keys() -> dict[str, tuple[type, str]]:
  """Every key of `config.objective` with its type and meaning."""
  keys = {
      "name": (str, "name in the registry"),
      "anchor": (str, "policy under the ratio: " + ", ".join(ANCHORS)),
      "proximal": (
          str,
          "proximal log-probs: recomputed by the trainer, or loglinear between"
          " behavior and live by policy version",
      ),
      "correction": (
          str,
          "for the gap between behavior and proximal: "
          + ", ".join(CORRECTION_WORDS)
          + " (mis = rejection); join a weight and rejection by +",
      ),
  }
  for slot, (options, meaning) in SLOTS.items():
    keys[slot] = (str, f"{meaning}: " + ", ".join(options))
  for _, _, kind in all_parts():
    keys |= parts.keys(kind)
  return keys


def override(spec: Spec, overrides: Mapping[str, Any]) -> Spec:
  """Returns the spec with config keys applied, or raises ValueError."""
  known = known_keys()
  for key, value in overrides.items():
    if key not in known:
      raise ValueError(_unknown(key, known))
    parts.convert(key, value, known[key][0])
  fields = dict(overrides)
  spec = _choose(spec, fields)
  for key, value in fields.items():
    owner = _owner(spec, key)
    value = parts.convert(key, value, known[key][0])
    part = dataclasses.replace(getattr(spec, owner), **{key: value})
    spec = dataclasses.replace(spec, **{owner: part})
  for part in spec.parts().values():
    parts.check(part)
    idle = part.idle_keys() & set(fields)
    if idle:
      raise ValueError(
          f"objective.{min(idle)}: nothing reads it beside {part}; remove it."
      )
  return spec


def with_controls(spec: Spec, controls: Mapping[str, Any]) -> Spec:
  """The spec with numbers replaced by traced scalars of the same key."""
  for key, value in controls.items():
    if key == VERSION_CONTROL:
      continue
    owner = _owner(spec, key)
    part = dataclasses.replace(getattr(spec, owner), **{key: value})
    spec = dataclasses.replace(spec, **{owner: part})
  return spec


def _choose(spec: Spec, fields: dict[str, Any]) -> Spec:
  """Applies the keys that choose parts, taking them out of `fields`."""
  chosen = {}
  aggregated = "aggregation" in fields
  for slot, (options, _) in SLOTS.items():
    word = fields.pop(slot, None)
    if word is None:
      continue
    if word not in options:
      raise ValueError(_bad_word(slot, word, options))
    if type(getattr(spec, slot)) is not options[word]:
      chosen[slot] = options[word]()
  surrogate = chosen.get("surrogate", spec.surrogate)
  if isinstance(surrogate, surrogates.Ratio) and not aggregated:
    # One loss per sequence: its mean over sequences.
    if "ratio" in chosen and chosen["ratio"].shared:
      chosen["aggregation"] = masked.SequenceMeanTokenMean()
  for word, options in (("anchor", ANCHORS), ("proximal", PROXIMALS)):
    if word in fields:
      chosen[word] = fields.pop(word)
      if chosen[word] not in options:
        raise ValueError(_bad_word(word, chosen[word], options))
  anchor = chosen.get("anchor")
  spec = dataclasses.replace(spec, **chosen)
  words = fields.pop("correction", None)
  return spec if words is None else _correct(spec, words, anchor)


def _correct(spec: Spec, words: str, anchor: str | None) -> Spec:
  """Applies the key `correction`."""
  chosen = [_ALIASES.get(w, w) for w in words.split("+")]
  for word in chosen:
    if word not in CORRECTION_WORDS:
      raise ValueError(_bad_word("correction", word, CORRECTION_WORDS))
  weights = [w for w in chosen if w in corrections.WEIGHTS and w != "none"]
  own = spec.choice("weight")
  if own == "decoupled" and own not in weights and "none" not in chosen:
    weights.append(own)
  if len(weights) > 1:
    raise ValueError(
        f"objective.correction={words}: {' and '.join(sorted(weights))} would "
        "apply the weight w = proximal/behavior twice; keep one."
    )
  if len(chosen) > 1 and "none" in chosen:
    raise ValueError(f"objective.correction={words}: none stands alone.")
  if own == "decoupled" and {"none", "bypass"} & set(chosen):
    raise ValueError(
        f"objective.correction={words}: {spec.name} is defined by its weight "
        "w; use name=ppo without it."
    )
  if "bypass" in chosen:
    if anchor == "proximal":
      raise ValueError(
          "objective.correction=bypass puts the behavior policy under the "
          "ratio; remove objective.anchor=proximal."
      )
    spec = dataclasses.replace(spec, anchor="behavior")
  weight, rejection = corrections.NoWeight(), corrections.NoRejection()
  if weights:
    kept = weights[0] == own
    weight = spec.weight if kept else corrections.WEIGHTS[weights[0]]()
  if "rejection" in chosen:
    rejection = corrections.Rejection()
  return dataclasses.replace(
      spec, weight=weight, rejection=rejection, correction_named=True
  )


def _owner(spec: Spec, key: str) -> str:
  """The field of the spec whose part has the key."""
  for name, part in spec.parts().items():
    if key in parts.keys(part):
      return name
  homes = [
      f"{slot}={word}" if word else slot
      for slot, word, kind in all_parts()
      if key in parts.keys(kind)
  ]
  if not homes:
    raise ValueError(_unknown(key, known_keys()))
  valid = [k for part in spec.parts().values() for k in parts.keys(part)]
  near = difflib.get_close_matches(key, valid, 1, 0.0)
  raise ValueError(
      f"objective.{key}: no chosen part of {spec.name} has it; it belongs to "
      f"{' or '.join(homes)}. Nearest key in use: objective.{near[0]}."
      f" A config file's key is unset by --config.objective.{key}= ."
  )


def _unknown(key: str, known: Mapping[str, Any]) -> str:
  near = difflib.get_close_matches(key, list(known), 1, 0.0)
  return f"objective.{key}: no such key; the nearest is objective.{near[0]}."


def _bad_word(slot: str, word: str, options: Any) -> str:
  near = difflib.get_close_matches(word, list(options), 1, 0.0)[0]
  return (
      f"objective.{slot}: expected one of {', '.join(options)}; found {word!r} "
      f"(nearest: {near})."
  )
