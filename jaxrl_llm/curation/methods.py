"""The registry: one line per method, with paper and arXiv id."""

from collections.abc import Mapping
import dataclasses
import difflib
from typing import Any

from jaxrl_llm.curation import confidence
from jaxrl_llm.curation import episodes
from jaxrl_llm.curation import influence
from jaxrl_llm.curation import pruning
from jaxrl_llm.losses import budgets
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import spec as spec_lib

Step = episodes.Step
NONE = "none"


@dataclasses.dataclass(frozen=True)
class Method:
  """A named step.

  Attributes:
    name: word of `config.curation.name`.
    title: of the paper.
    arxiv: arXiv id.
    step: with its defaults.
  """

  name: str
  title: str
  arxiv: str
  step: Step


_METHODS = (
    Method(
        "codapo",
        "Confidence and Difficulty-adaptive Policy Optimization",
        "2606.07950",
        confidence.QuestionValue(),
    ),
    Method(
        "cppo_completion",
        "Completion Pruning Policy Optimization",
        "2503.22342",
        pruning.CompletionTopK(),
    ),
    Method(
        "dppo_pruning",
        "Dynamic Pruning Policy Optimization",
        "2603.04135",
        pruning.RandomPruning(),
    ),
    Method(
        "ippo",
        "Influence-Guided PPO",
        "2604.01597",
        influence.Influence(),
    ),
    Method(
        "ps_ppo",
        "Prefix-Sampling PPO",
        "2606.29758",
        pruning.PrefixSampling(),
    ),
)

REGISTRY: dict[str, Method] = {method.name: method for method in _METHODS}


def _known_keys() -> dict[str, tuple[type, str]]:
  keys = {"name": (str, f"name in the registry, or {NONE}")}
  for method in _METHODS:
    for key, meaning in parts.keys(method.step).items():
      keys.setdefault(key, meaning)
  return keys


KEYS: dict[str, tuple[type, str]] = _known_keys()


def table() -> str:
  """The registry as a Markdown table."""
  rows = ["| name | what it does | divides by | paper |", "|---|---|---|---|"]
  for method in _METHODS:
    link = f"[{method.arxiv}](https://arxiv.org/abs/{method.arxiv})"
    rows.append(
        f"| `{method.name}` | {method.step.words} | {method.step.denominator} |"
        f" {method.title}, {link} |"
    )
  return "\n".join(rows)


def describe(name: str, step: Step | None) -> str:
  """Names the method and its numbers in one line."""
  values = parts.keys(step) if step else {}
  numbers = ", ".join(
      f"{key} {getattr(step, key)}"
      for key in values
      if getattr(step, key) is not None
  )
  return f"curation: {name}" + (f" ({numbers})" if numbers else "")


def build(overrides: Mapping[str, Any]) -> Step | None:
  """Returns the step of `overrides["name"]`, None for `none`.

  Args:
    overrides: keys of `config.curation` that are set; None counts as unset.

  Raises:
    ValueError: one line naming the key and the remedy.
  """
  fields = {k: v for k, v in overrides.items() if v is not None}
  name = fields.pop("name", NONE)
  if name != NONE and name not in REGISTRY:
    near = difflib.get_close_matches(str(name), [NONE, *REGISTRY], 1, 0.0)[0]
    raise ValueError(
        f"curation.name: no method {name!r}; the nearest is {near!r}."
    )
  step = REGISTRY[name].step if name != NONE else None
  own = parts.keys(step) if step else {}
  for key, value in fields.items():
    if key not in own:
      raise ValueError(_foreign(key, name, own))
    value = parts.convert(key, value, own[key][0], "curation")
    step = dataclasses.replace(step, **{key: value})
  if step is not None:
    parts.check(step, "curation")
    idle = step.idle_keys() & set(fields)
    if idle:
      raise ValueError(
          f"curation.{min(idle)}: nothing reads it beside {step}; remove it."
      )
  return step


def _foreign(key: str, name: str, own: Mapping[str, Any]) -> str:
  """Says why a key has no place."""
  if key not in KEYS:
    near = difflib.get_close_matches(key, list(KEYS), 1, 0.0)[0]
    return f"curation.{key}: no such key; the nearest is curation.{near}."
  homes = [m.name for m in _METHODS if key in parts.keys(m.step)]
  return (
      f"curation.{key}: {name} has no such key; it belongs to"
      f" {' or '.join(homes)}; remove it or set curation.name."
  )


def validate(step: Step | None, spec: spec_lib.Spec) -> None:
  """Refuses a step beside an objective that would not mean what it says.

  Raises:
    ValueError: naming both and the remedy.
  """
  reason = step and (_whole_batch(step, spec) or _whole_response(step, spec))
  if reason:
    raise ValueError(f"curation: {reason}")


def _whole_batch(step: Step, spec: spec_lib.Spec) -> str:
  """Says what an objective reads of a whole mini-batch."""
  if spec.surrogate.pairwise:
    return (
        f"{spec.name} compares responses in pairs, so neither a score nor a"
        " weight of one response has a meaning; set curation.name=none."
    )
  if step.unbiased and spec.trust_region.needs_statistics:
    return (
        f"the bounds of {spec.name} come from all tokens of a mini-batch, so"
        " pruning some would move them and bias the gradient; choose another"
        " objective.trust_region or curation.name=cppo_completion."
    )
  if step.denominator == episodes.QUESTION and spec.weight.normalized:
    return (
        "objective.correction_normalize divides within the objective's own"
        " aggregation; set curation.loss_average=objective."
    )
  return ""


def _whole_response(step: Step, spec: spec_lib.Spec) -> str:
  """Says what an objective reads of a whole response."""
  if not step.truncates:
    return ""
  reads = {
      "objective.ratio": spec.choice("ratio").startswith("sequence"),
      "objective.correction_level": spec.weight.level != "token",
      "objective.rejection_level": spec.choice("rejection") != "none"
      and spec.rejection.rejection_level != "token",
      "objective.trust_region=prefix_budget": isinstance(
          spec.trust_region, budgets.PrefixBudget
      ),
  }
  for key, whole in reads.items():
    if whole:
      return (
          f"{key} of {spec.name} reads the whole response, of which a sampled"
          " prefix shows a part; choose a token-level part or another"
          " curation.name."
      )
  return ""
