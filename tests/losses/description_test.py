"""What describe says of anchors, caps and intervals; intervals of a point."""

import pytest

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective


@pytest.mark.parametrize("overrides,phrases,absent", [
    ({"name": "topr"}, ["behavior (recorded while sampling)"], []),
    (
        {"name": "ppo"},
        ["proximal (recomputed once before the first update on the batch)"],
        ["recorded while sampling"],
    ),
    (
        {"name": "ppo", "correction": "mis", "rejection_low": 0.6,
         "rejection_high": 1.4},
        ["keeps 0.6 ≤ w ≤ 1.4 per token"], [],
    ),
    (
        {"name": "cispo", "weight_min": 0.8, "weight_max": 1.28},
        ["within [0.8, 1.28]"], [],
    ),
    ({"name": "cispo"}, ["within [0, 1.2]"], []),
    ({"name": "topr"}, ["within [0, ∞]"], []),
], ids=str)
def test_describe_says(overrides, phrases, absent):
  text = objective.describe(algorithms.build(overrides))
  for phrase in phrases:
    assert phrase in text
  for phrase in absent:
    assert phrase not in text


@pytest.mark.parametrize("overrides", [
    {"name": "cispo", "weight_min": 1.2},
    {"name": "topr", "weight_min": 0.5},
    {"name": "topr", "weight_max": 0.5},
    {"name": "ppo", "correction": "icepop", "correction_low": 5.0},
    {"name": "ppo", "correction": "mis", "rejection_low": 2.0},
    {"name": "dapo", "overlong_limit": 4096},
    {"name": "cppo_prefix", "omega_min": 1.0, "delta_b": 0.0},
], ids=str)
def test_intervals_may_be_a_point_or_open_on_one_side(overrides):
  spec = algorithms.build(overrides)
  held = {k: v for part in spec.parts().values() for k, v in vars(part).items()}
  for key in overrides.keys() - {"name", "correction"}:
    assert held[key] == overrides[key]


@pytest.mark.parametrize("overrides,message", [
    ({"name": "ppo", "dual_clip": 1.0}, "dual_clip: expected > 1"),
    ({"name": "ppo", "clip_low": 0.0}, "clip_low: expected > 0"),
    ({"name": "cppo_prefix", "omega_min": 1.01}, "omega_min: expected <= 1"),
    ({"name": "cppo_prefix", "delta_b": -0.01}, "delta_b: expected >= 0"),
    ({"name": "sis", "proximal": "loglinear"}, "top-K reads the proximal"),
    (
        {"name": "ppo", "proximal": "loglinear", "divergence": "topk_tv",
         "trust_region": "divergence"},
        "top-K reads the proximal",
    ),
    (
        {"name": "ppo", "proximal": "loglinear", "kl_reward_coefficient": 0.1},
        "kl_reward_coefficient reads the proximal",
    ),
], ids=str)
def test_numbers_beyond_their_bounds_are_refused(overrides, message):
  with pytest.raises(ValueError, match=message):
    algorithms.build(overrides)


def test_what_is_off_is_not_required():
  needs = objective.requirements(algorithms.build({"name": "ppo"}))
  assert not needs.reference and not needs.entropy and not needs.token_rewards


def test_numbers_of_the_papers_that_no_golden_case_reads():
  """3.3: the geometric mean shrinks as 1/√t, bounds 0.025 and 0.05."""
  region = algorithms.build({"name": "ctpo_geomean"}).trust_region
  assert (region.log_clip_low, region.log_clip_high) == (0.025, 0.05)
  assert region.power == -0.5
