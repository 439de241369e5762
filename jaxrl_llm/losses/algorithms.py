"""The registry: one readable block per algorithm, with paper and arXiv id."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from jaxrl_llm.losses import adaptive
from jaxrl_llm.losses import advantages
from jaxrl_llm.losses import budgets
from jaxrl_llm.losses import corrections
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import preference
from jaxrl_llm.losses import ratios
from jaxrl_llm.losses import regularizers
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.losses import supervised
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import token_advantages
from jaxrl_llm.losses import trust_regions
from jaxrl_llm.losses import validation
from jaxrl_llm.losses import value

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
        # A constant response limit, the job's own: sampling.max_new_tokens.
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
            divergence="binary_tv", omega_min=0.8, budget="fixed", gate="hard"
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
    _algorithm(
        "gspo_token",
        "Group Sequence Policy Optimization, token form",
        "2507.18071",
        ratio=ratios.SequenceMeanToken(),
        trust_region=trust_regions.Clip(clip_low=3e-4, clip_high=4e-4),
        aggregation=masked.SequenceMeanTokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "ctpo_geomean",
        "Cumulative Token Policy Optimization, geometric mean of the prefix",
        "2605.07331",
        ratio=ratios.CumulativeMean(),
        trust_region=trust_regions.PositionClip(
            log_clip_low=0.025, log_clip_high=0.05, power=-0.5
        ),
        aggregation=masked.SequenceMeanTokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "dppo_divergence",
        "Divergence Proximal Policy Optimization",
        "2602.04879",
        anchor="behavior",
        trust_region=trust_regions.DivergenceMask(divergence="binary_tv"),
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "acpo_advantage",
        "Advantage Clipped Policy Optimization",
        "2609.36816",
        trust_region=trust_regions.ProductClip(alpha=3.0),
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "acpo_adaptive",
        "Adaptive Clip Policy Optimization",
        "2606.22570",
        trust_region=adaptive.AdaptiveClip(
            epsilon_base=0.2,
            epsilon_slope=3.0,
            epsilon_min=0.0,
            epsilon_max=3.0,
            dual_clip=3.0,
        ),
        aggregation=masked.SequenceMeanTokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "sis",
        "Turning Off-Policy Tokens On-Policy: Selective Importance Sampling",
        "2607.04728",
        selection=ratios.SelectiveImportanceSampling(selection_topk=100),
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.SequenceMeanTokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "reinforce_pp",
        "REINFORCE++",
        "2501.03262",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.TokenMean(),
        advantage=token_advantages.Whitened(discount=1.0),
    ),
    _algorithm(
        "reinforce_pp_baseline",
        "REINFORCE++ with a group baseline",
        "2501.03262",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.TokenMean(),
        advantage=token_advantages.GroupWhitened(),
    ),
    _algorithm(
        "remax",
        "ReMax: REINFORCE with a greedy baseline",
        "2310.10505",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.TokenMean(),
        advantage=token_advantages.GreedyBaseline(),
    ),
    _algorithm(
        "sapo",
        "Soft Adaptive Policy Optimization",
        "2511.20347",
        surrogate=surrogates.Sigmoid(tau_positive=1.0, tau_negative=1.05),
        trust_region=trust_regions.NoRegion(),
        aggregation=masked.SequenceMeanTokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "topr",
        "Tapered Off-Policy REINFORCE",
        "2503.14286",
        anchor="behavior",
        ratio=ratios.Sequence(),
        surrogate=surrogates.WeightedLogProb(),
        trust_region=trust_regions.Taper(taper_zero="positive"),
        aggregation=masked.SequenceMeanTokenSum(),
        advantage=advantages.Reward(),
    ),
    _algorithm(
        "decoupled_ppo",
        "AReaL: decoupled PPO objective",
        "2505.24298",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        weight=corrections.Decoupled(),
        correction_named=True,
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "espo",
        "You May Not Need Ratio Clipping in PPO",
        "2202.00079",
        trust_region=trust_regions.NoRegion(),
        stopping=spec_lib.Stopping(stop_deviation=0.25),
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "vcppo",
        "Value-Calibrated PPO",
        "2503.01491",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.TokenMean(),
        advantage=value.Gae(lambda_actor=0.95, lambda_critic=1.0),
    ),
    _algorithm(
        "vapo",
        "VAPO: Value-model-based Augmented PPO",
        "2504.05118",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.28),
        aggregation=masked.TokenMean(),
        regularizers=regularizers.Regularizers(positive_coefficient=0.1),
        advantage=value.Gae(lambda_alpha=0.05, lambda_critic=1.0),
    ),
    _algorithm(
        "tppo",
        "Truncated Proximal Policy Optimization",
        "2506.15050",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.TokenMean(),
        advantage=value.Gae(
            lambda_actor=0.95, lambda_critic=1.0, value_targets="finished"
        ),
    ),
    _algorithm(
        "dvpo",
        "Decoupled Value Policy Optimization: Pretrain Value, Not Reward",
        "2502.16944",
        trust_region=trust_regions.Clip(clip_low=0.2, clip_high=0.2),
        aggregation=masked.TokenMean(),
        advantage=value.StaticValue(),
    ),
    _algorithm(
        "bypass_reinforce",
        "REINFORCE weighted by the truncated live/behavior ratio",
        "",
        anchor="behavior",
        surrogate=surrogates.LogProb(),
        trust_region=trust_regions.NoRegion(),
        weight=corrections.TruncatedImportanceSampling(correction_cap=2.0),
        aggregation=masked.TokenMean(),
        advantage=advantages.GroupStd(),
    ),
    _algorithm(
        "sft",
        "Supervised fine-tuning on the responses with a reward",
        "",
        anchor="behavior",
        surrogate=surrogates.LogProb(),
        trust_region=trust_regions.NoRegion(),
        aggregation=masked.TokenMean(),
        advantage=supervised.Imitation(imitate_above=0.0),
    ),
    _algorithm(
        "dpo",
        "Direct Preference Optimization",
        "2305.18290",
        anchor="reference",
        surrogate=preference.Preference(
            pairs="all", dpo_beta=0.1, label_smoothing=0.0
        ),
        trust_region=trust_regions.NoRegion(),
        aggregation=masked.TokenSum(),
        advantage=advantages.Reward(),
    ),
)

REGISTRY: dict[str, Algorithm] = {a.name: a for a in _ALGORITHMS}
KEYS: dict[str, tuple[type, str]] = spec_lib.known_keys()


def table() -> str:
  """The registry as a Markdown table."""
  rows = ["| name | paper | arXiv |", "|---|---|---|"]
  for algorithm in _ALGORITHMS:
    arxiv = algorithm.arxiv
    link = f"[{arxiv}](https://arxiv.org/abs/{arxiv})" if arxiv else "–"
    rows.append(f"| `{algorithm.name}` | {algorithm.title} | {link} |")
  return "\n".join(rows)


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
