"""The registry: keys, their defaults, and what is refused."""

import pytest

from configs import base
from jaxrl_llm.curation import methods
from jaxrl_llm.losses import algorithms


def test_keys_are_those_of_the_base_config():
  config = base.get_config().curation
  assert set(config.keys()) == set(methods.KEYS)
  assert methods.build(config.to_dict()) is None


@pytest.mark.parametrize("name", methods.REGISTRY)
def test_every_name_builds_its_defaults(name):
  method = methods.REGISTRY[name]
  assert methods.build({"name": name, "prune_share": None}) == method.step
  assert f"`{name}`" in methods.table() and method.arxiv in methods.table()


def test_a_key_changes_the_step():
  step = methods.build({"name": "ps_ppo", "full_probability": 1})
  assert step.full_probability == 1.0


REFUSED = {
    "name": ({"name": "ipo"}, "curation.name: .*nearest is 'ippo'"),
    "misspelt": (
        {"name": "ippo", "rewieght": True}, "nearest is curation.reweight"
    ),
    "foreign": (
        {"name": "ippo", "prune_share": 0.5}, "belongs to cppo_completion"
    ),
    "of no method": ({"min_prefix": 0.5}, "none has no such key.* ps_ppo"),
    "type": ({"name": "ippo", "reweight": 1}, "expected bool"),
    "range": (
        {"name": "ps_ppo", "full_probability": 0.0},
        "curation.full_probability: expected > 0",
    ),
    "choice": (
        {"name": "codapo", "confidence_from": "live"},
        "curation.confidence_from: expected one of proximal, behavior",
    ),
    "idle": (
        {"name": "cppo_completion", "prune_threshold": 1.0, "prune_share": 0.1},
        "curation.prune_share: nothing reads it",
    ),
    "idle folders": (
        {"name": "ippo", "validation": "batch", "validation_rollouts": "x"},
        "curation.validation_rollouts: nothing reads it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
  overrides, message = REFUSED[case]
  with pytest.raises(ValueError, match=message) as caught:
    methods.build(overrides)
  assert "\n" not in str(caught.value)


TOGETHER = {
    "a sequence ratio": ("ps_ppo", {"name": "gspo"}, "ratio of gspo"),
    "its token form": ("ps_ppo", {"name": "gspo_token"}, "ratio of gspo_token"),
    "sequence weights": (
        "ps_ppo",
        {"name": "grpo", "correction": "tis", "correction_level": "sequence"},
        "correction_level",
    ),
    "sequence rejection": (
        "ps_ppo",
        {
            "name": "grpo",
            "correction": "rejection",
            "rejection_level": "geometric",
        },
        "rejection_level",
    ),
    "prefix budget": ("ps_ppo", {"name": "cppo_prefix"}, "prefix_budget"),
    "statistics": ("ps_ppo", {"name": "acpo_adaptive"}, "bounds of"),
    "statistics, pruned": ("dppo_pruning", {"name": "acpo_adaptive"}, "bounds"),
    "scores of pairs": ("ippo", {"name": "dpo"}, "curation.name=none"),
    "weights of pairs": ("codapo", {"name": "dpo"}, "in pairs"),
    "normalised weights": (
        "codapo",
        {"name": "grpo", "correction": "tis", "correction_normalize": True},
        "correction_normalize",
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_refused_beside_an_objective(case):
  name, overrides, message = TOGETHER[case]
  step, spec = methods.build({"name": name}), algorithms.build(overrides)
  with pytest.raises(ValueError, match=message):
    methods.validate(step, spec)


@pytest.mark.parametrize("name", methods.REGISTRY)
@pytest.mark.parametrize("objective", ["ctpo", "grpo", "dapo", "cispo"])
def test_allowed_beside_an_objective(name, objective):
  spec = algorithms.build({"name": objective, "correction": "rejection"})
  methods.validate(methods.build({"name": name}), spec)
  methods.validate(None, spec)
