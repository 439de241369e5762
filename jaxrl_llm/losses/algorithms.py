"""The registry: one readable block per algorithm, with paper and arXiv id."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from jaxrl_llm.losses import advantages
from jaxrl_llm.losses import budgets
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import ratios
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import trust_regions
from jaxrl_llm.losses import validation

Spec = spec_lib.Spec


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """A named objective.

  Attributes:
    name: word of `config.objective.name`.
    title: title of the paper, or what the algorithm is called.
    arxiv: arXiv id, empty where there is none.
    spec: its parts.
  """

  name: str
  title: str
  arxiv: str
  spec: Spec


def _algorithm(
    name: str, title: str, arxiv: str, **fields: Any
) -> Algorithm:
  return Algorithm(name, title, arxiv, Spec(name=name, **fields))


_ALGORITHMS = (
    _algorithm(
        "ppo",
        "Proximal Policy Optimization",
        "1707.06347",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "grpo",
        "DeepSeekMath: Group Relative Policy Optimization",
        "2402.03300",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.SequenceMeanTokenMean(),
        advantage=advantages.GroupStd(std_ddof=1, std_epsilon=1e-6),
    ),
    _algorithm(
        "dr_grpo",
        "Understanding R1-Zero-Like Training (Dr. GRPO)",
        "2503.20783",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.SequenceMeanTokenSumNorm(horizon=3000.0),
        advantage=advantages.GroupMean(),
    ),
    _algorithm(
        "dapo",
        "DAPO: Decoupled Clip and Dynamic Sampling Policy Optimization",
        "2503.14476",
        trust_region=trust_regions.Clip(
            clip_low=0.2, clip_high=0.28, dual_clip=10.0
        ),
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "gspo",
        "Group Sequence Policy Optimization",
        "2507.18071",
        ratio=ratios.SequenceMean(),
        trust_region=trust_regions.Clip(clip_low=3e-4, clip_high=4e-4),
        aggregation=masked.SequenceMeanTokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "cispo",
        "MiniMax-M1: Clipped IS-weight Policy Optimization",
        "2506.13585",
        surrogate=surrogates.WeightedLogProb(weight_max=1.2),
        trust_region=trust_regions.NoRegion(),
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "ctpo",
        "Cumulative Token Policy Optimization",
        "2605.07331",
        ratio=ratios.Cumulative(),
        trust_region=trust_regions.PositionClip(
            log_clip_low=0.025, log_clip_high=0.05, power=0.5
        ),
        aggregation=masked.SequenceMeanTokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "cppo_prefix",
        "Cumulative Prefix-divergence Policy Optimization",
        "2606.10968",
        anchor="behavior",
        trust_region=budgets.PrefixBudget(
            divergence="binary_tv", delta=0.15, delta_b=0.015, omega_min=0.8
        ),
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "rloo",
        "Back to Basics: REINFORCE Leave-One-Out",
        "2402.14740",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.TokenMean(),
        advantage=advantages.LeaveOneOut(),
    ),
)

REGISTRY: dict[str, Algorithm] = {a.name: a for a in _ALGORITHMS}
KEYS: dict[str, tuple[type, str]] = spec_lib.known_keys()


def build(overrides: Mapping[str, Any]) -> Spec:
  """Returns the spec of `overrides["name"]` with the other keys applied.

  Args:
    overrides: keys of `config.objective` that are set; None counts as unset.

  Raises:
    ValueError: one line naming the key or the combination, and the remedy.
  """
  fields = {k: v for k, v in overrides.items() if v is not None}
  if "name" not in fields:
    raise ValueError("objective.name: expected a registry name, found none.")
  name = fields.pop("name")
  if name not in REGISTRY:
    near = difflib.get_close_matches(str(name), list(REGISTRY), 1, 0.0)[0]
    raise ValueError(
        f"objective.name: no algorithm {name!r}; the nearest is {near!r}."
    )
  spec = spec_lib.override(REGISTRY[name].spec, fields)
  validation.validate(spec)
  return spec
