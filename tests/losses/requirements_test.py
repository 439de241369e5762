"""What each objective asks of training, and nothing that it does not read."""

import dataclasses

import pytest

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective

GROUPS = {"proximal": True, "group_baseline": True}
BEHAVIOR = {"correction_named": True}
TOKENS = {"proximal": True, "token_rewards": True}
STATE = TOKENS | {"critic": "state", "bootstraps": True}
DPO = BEHAVIOR | {
    "group_baseline": True, "pairs": True, "reference": True,
    "statistics": True,
}
WANTED = {
    "acpo_adaptive": GROUPS | {"statistics": True},
    "acpo_advantage": GROUPS,
    "bypass_reinforce": BEHAVIOR | {"group_baseline": True},
    "cispo": GROUPS,
    "cppo_prefix": BEHAVIOR | {"group_baseline": True},
    "ctpo": GROUPS,
    "ctpo_geomean": GROUPS,
    "dapo": GROUPS,
    "decoupled_ppo": GROUPS | {"correction_named": True},
    "dppo_divergence": BEHAVIOR | {"group_baseline": True},
    "dpo": DPO,
    "dr_grpo": GROUPS,
    "dvpo": TOKENS | {"critic": "action"},
    "espo": GROUPS | {"stop_deviation": 0.25},
    "grpo": GROUPS,
    "gspo": GROUPS,
    "gspo_token": GROUPS,
    "ppo": GROUPS,
    "reinforce_pp": {"proximal": True},
    "reinforce_pp_baseline": GROUPS,
    "remax": {"proximal": True, "greedy_baseline": True},
    "rloo": GROUPS,
    "sapo": GROUPS,
    "sft": BEHAVIOR,
    "sis": GROUPS | {"key": True, "proximal_topk": 100},
    "topr": BEHAVIOR,
    "tppo": STATE,
    "vapo": STATE,
    "vcppo": STATE,
}
CHANGES = (
    ({"kl_coefficient": 0.1}, {"reference": True}),
    ({"entropy_coefficient": 0.1}, {"entropy": True}),
    (
        {"kl_reward_coefficient": 0.1},
        {"reference": True, "token_rewards": True},
    ),
    (
        {"proximal": "loglinear", "correction": "none"},
        {"proximal": False, "versions": True, "correction_named": True},
    ),
    ({"correction": "tis"}, {"correction_named": True}),
    (
        {"correction": "bypass"},
        {"proximal": False, "correction_named": True},
    ),
    (
        {"anchor": "behavior", "kl_reward_coefficient": 0.1},
        {"reference": True, "token_rewards": True, "correction_named": True},
    ),
    (
        {"trust_region": "divergence", "divergence": "topk_kl"},
        {"proximal_topk": 20},
    ),
    (
        {
            "trust_region": "divergence", "divergence": "topk_kl",
            "anchor": "behavior",
        },
        {"behavior_topk": 20, "proximal": False, "correction_named": True},
    ),
)


def asked(overrides) -> dict[str, object]:
  """Requirements that are not False, 0, empty or None."""
  found = objective.requirements(algorithms.build(overrides))
  return {k: v for k, v in dataclasses.asdict(found).items() if v}


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_requirements(name):
  assert asked({"name": name}) == WANTED[name]


@pytest.mark.parametrize("keys, change", CHANGES)
def test_requirements_follow_the_keys(keys, change):
  wanted = {k: v for k, v in (GROUPS | change).items() if v}
  assert asked({"name": "ppo"} | keys) == wanted
