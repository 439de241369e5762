"""Specs: every name builds, describes itself, and refuses what has no sense."""

import pathlib
import re
import sys

import loss_batches
import pytest

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import spec as spec_lib

ROOT = pathlib.Path(__file__).parents[2]

NAMES = (
    "ppo grpo dr_grpo dapo gspo gspo_token cispo rloo reinforce_pp"
    " reinforce_pp_baseline remax sapo topr decoupled_ppo dppo_divergence espo"
    " ctpo ctpo_geomean cppo_prefix acpo_advantage acpo_adaptive sis"
    " sft dpo"
).split()


def test_every_name_is_registered():
  """Every registered name builds, unchanged, into a static spec."""
  assert set(NAMES) <= set(algorithms.REGISTRY)
  for name, algorithm in algorithms.REGISTRY.items():
    assert algorithms.build({"name": name}) == algorithm.spec
    assert hash(algorithm.spec) == hash(algorithms.build({"name": name}))


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_describe_states_every_number_that_is_read(name):
  spec = algorithms.REGISTRY[name].spec
  text = objective.describe(spec)
  assert spec.anchor in text
  assert "a_it =" in text
  for slot, part in spec.parts().items():
    if slot in ("regularizers", "shaping"):
      continue  # None of the registry adds terms or shapes rewards.
    for key in parts.keys(part):
      value = getattr(part, key)
      if value is None or isinstance(value, (bool, str)):
        continue
      if key in part.idle_keys():
        continue
      shown = {f"{value:g}", f"{1 + value:g}", f"{1 - value:g}"}
      assert any(number in text for number in shown), (key, value)


def test_describe_of_a_mixture():
  spec = algorithms.build({
      "name": "ctpo",
      "trust_region": "prefix_budget",
      "divergence": "binary_kl",
      "correction": "tis+mis",
      "correction_cap": 3.5,
      "rejection_high": 7.0,
      "kl_coefficient": 0.04,
      "aggregation": "seq-mean-token-sum-norm",
      "horizon": 77.0,
      "overlong_limit": 5000,
      "stop_deviation": 0.3,
      "advantage": "reward",
  })
  text = objective.describe(spec)
  for piece in (
      "log proximal_j", "sg[Σ_{j≤t}", "prefix product", "δ = 0.1, δ_b = 0.002",
      "proximal log(proximal/π)", "min(w, 3.5)", "0.142857 ≤ w ≤ 7",
      "0.04 × KL", "H = 77 tokens", "n > 904", "0.3", "A = R, no baseline",
  ):
    assert piece in text, piece


REFUSED = {
    "key of another part": (
        {"name": "ctpo", "clip_low": 0.2}, "clip_low.*trust_region=clip"
    ),
    "misspelt key": ({"name": "ppo", "dual_clp": 3.0}, "dual_clip"),
    "misspelt name": ({"name": "grpoo"}, "'grpo'"),
    "no name": ({}, "objective.name"),
    "misspelt part": ({"name": "ppo", "ratio": "cumulativ"}, "cumulative"),
    "wrong type": ({"name": "ppo", "clip_low": "x"}, "expected float"),
    "bool for a number": ({"name": "ppo", "clip_low": True}, "expected float"),
    "wrong sign": ({"name": "ppo", "clip_low": -0.2}, "expected > 0"),
    "not finite": ({"name": "ppo", "clip_low": float("nan")}, "finite"),
    "not a choice": ({"name": "cppo_prefix", "gate": "softer"}, "hard, soft"),
    "dual clip below 1": ({"name": "ppo", "dual_clip": 0.9}, "expected > 1"),
    "key that nothing reads": (
        {"name": "cppo_prefix", "budget_cap": 3.0}, "nothing reads"
    ),
    "k of a binary divergence": (
        {"name": "dppo_divergence", "divergence_topk": 9}, "nothing reads"
    ),
    "estimator without coefficient": (
        {"name": "ppo", "kl_estimator": "k1"}, "nothing reads"
    ),
    "buffer without limit": (
        {"name": "dapo", "overlong_buffer": 9}, "nothing reads"
    ),
    "two weights": ({"name": "ppo", "correction": "tis+icepop"}, "twice"),
    "decoupled with tis": (
        {"name": "ppo", "correction": "decoupled+tis"}, "twice"
    ),
    "decoupled_ppo with tis": (
        {"name": "decoupled_ppo", "correction": "tis"}, "twice"
    ),
    "decoupled_ppo with icepop": (
        {"name": "decoupled_ppo", "correction": "icepop"}, "twice"
    ),
    "decoupled_ppo without w": (
        {"name": "decoupled_ppo", "correction": "none"}, "name=ppo"
    ),
    "none with another": ({"name": "ppo", "correction": "none+tis"}, "alone"),
    "weight on behavior anchor": (
        {"name": "cppo_prefix", "correction": "tis"}, "already contains w"
    ),
    "decoupled on behavior anchor": (
        {"name": "dppo_divergence", "correction": "decoupled"},
        "already contains w",
    ),
    "icepop on topr": (
        {"name": "topr", "correction": "icepop"}, "already contains w"
    ),
    "tis in bypass": (
        {"name": "ppo", "correction": "bypass+tis"}, "already contains w"
    ),
    "rejection in bypass": (
        {"name": "ppo", "anchor": "behavior", "correction": "mis"},
        "rejects nothing",
    ),
    "bypass with a proximal anchor": (
        {"name": "ppo", "anchor": "proximal", "correction": "bypass"}, "remove"
    ),
    "normalized bypass weight": (
        {"name": "bypass_reinforce", "correction_normalize": True}, "False"
    ),
    "sum norm without horizon": (
        {"name": "grpo", "aggregation": "seq-mean-token-sum-norm"},
        "objective.horizon",
    ),
    "sigmoid in a clip": (
        {"name": "ppo", "surrogate": "sigmoid"}, "trust_region=none"
    ),
    "taper of a ratio": (
        {"name": "ppo", "trust_region": "taper"}, "weighted_log_prob"
    ),
    "position bounds on a sequence": (
        {"name": "ctpo", "ratio": "sequence"}, "one value per sequence"
    ),
    "empty weight interval": (
        {"name": "cispo", "weight_min": 2.0}, "exceeds weight_max"
    ),
    "empty icepop interval": (
        {"name": "ppo", "correction": "icepop", "correction_low": 9.0},
        "exceeds",
    ),
    "empty rejection interval": (
        {"name": "ppo", "correction": "mis", "rejection_low": 9.0}, "exceeds"
    ),
    "buffer above limit": (
        {"name": "dapo", "overlong_limit": 100}, "exceeds overlong_limit"
    ),
    "reference under a ratio": (
        {"name": "ppo", "anchor": "reference"}, "name=dpo"
    ),
    "pairs against the behavior policy": (
        {"name": "dpo", "correction": "bypass"}, "use anchor=reference"
    ),
    "pairs in a trust region": (
        {"name": "dpo", "trust_region": "clip"}, "use trust_region=none"
    ),
    "pairs of sequence ratios": (
        {"name": "dpo", "ratio": "sequence"}, "use ratio=token"
    ),
    "pairs with exempt tokens": (
        {"name": "dpo", "selection": "sis"}, "use selection=none"
    ),
    "pairs in a token mean": (
        {"name": "dpo", "aggregation": "token-mean"},
        "use aggregation=token-sum",
    ),
    "pairs of advantages": (
        {"name": "dpo", "advantage": "group_std"}, "use advantage=reward"
    ),
    "pairs with a weight": (
        {"name": "dpo", "correction": "tis"}, "correction=tis with"
    ),
    "pairs with a rejection": (
        {"name": "dpo", "correction": "mis"}, "correction=rejection with"
    ),
    "pairs with a KL": (
        {"name": "dpo", "kl_coefficient": 0.1}, "kl_coefficient with.*dpo_beta"
    ),
    "pairs with an entropy bonus": (
        {"name": "dpo", "entropy_coefficient": 0.1}, "entropy_coefficient with"
    ),
    "pairs with a KL in the reward": (
        {"name": "dpo", "kl_reward_coefficient": 0.1},
        "kl_reward_coefficient with",
    ),
    "pairs under loglinear": (
        {"name": "dpo", "proximal": "loglinear"}, "read by nothing"
    ),
    "labels mostly wrong": (
        {"name": "dpo", "label_smoothing": 0.6}, "expected <= 0.5"
    ),
    "pairs of a ratio loss": ({"name": "ppo", "pairs": "all"}, "preference"),
    "imitation with a KL in the reward": (
        {"name": "sft", "kl_reward_coefficient": 0.1}, "kl_coefficient"
    ),
    "rejection of what is imitated": (
        {"name": "sft", "correction": "mis"}, "rejects nothing"
    ),
    "loglinear without a proximal policy": (
        {"name": "topr", "proximal": "loglinear"}, "read by nothing"
    ),
    "loglinear with a rejection": (
        {"name": "ppo", "proximal": "loglinear", "correction": "mis"},
        "proximal=recomputed",
    ),
    "loglinear with a normalized weight": (
        {
            "name": "ppo",
            "proximal": "loglinear",
            "correction": "tis",
            "correction_normalize": True,
        },
        "correction_normalize reads the proximal policy before the update",
    ),
    "loglinear under sis": (
        {"name": "sis", "proximal": "loglinear"},
        "a top-K reads the proximal policy before the update",
    ),
    "loglinear with a KL in the reward": (
        {
            "name": "reinforce_pp",
            "proximal": "loglinear",
            "kl_reward_coefficient": 0.1,
        },
        "kl_reward_coefficient reads the proximal policy before the update",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_with_one_line_that_names_the_remedy(case):
  overrides, message = REFUSED[case]
  with pytest.raises(ValueError, match=message) as caught:
    algorithms.build(overrides)
  assert "\n" not in str(caught.value)
  assert str(caught.value).startswith("objective")


def test_bypass_reinforce_weighs_the_live_ratio():
  """The one place where tis and icepop meet a behavior anchor."""
  base = {"name": "ppo", "surrogate": "log_prob", "trust_region": "none"}
  spec = algorithms.build(base | {"correction": "bypass+tis"})
  assert spec.weighs_live_ratio
  assert "live/behavior" in objective.describe(spec)
  named = algorithms.build(
      base | {"correction": "icepop", "anchor": "behavior"}
  )
  assert named.weighs_live_ratio


def test_decoupled_takes_a_rejection():
  spec = algorithms.build(
      {"name": "decoupled_ppo", "correction": "rejection", "decoupled_cap": 5.0}
  )
  assert spec.choice("weight") == "decoupled"
  assert spec.weight.decoupled_cap == 5.0
  assert spec.choice("rejection") == "rejection"


def test_staleness_is_addressed_in_words():
  """A proximal anchor names a correction or none; unset is not none."""
  named = lambda **k: objective.requirements(
      algorithms.build({"name": "ppo", **k})
  ).correction_named
  assert not named()
  for word in ("none", "tis", "icepop", "decoupled", "mis", "bypass"):
    assert named(correction=word)
  topr = algorithms.build({"name": "topr"})
  assert objective.requirements(topr).correction_named


def test_requirements():
  needs = lambda **k: objective.requirements(algorithms.build(k))
  prefix = needs(name="cppo_prefix")
  assert not prefix.proximal and prefix.behavior_topk == 0
  top = needs(name="cppo_prefix", divergence="topk_tv")
  assert (top.behavior_topk, top.proximal_topk) == (20, 0)
  sis = needs(name="sis")
  assert (sis.behavior_topk, sis.proximal_topk, sis.key) == (0, 100, True)
  assert needs(name="acpo_adaptive").statistics
  assert not needs(
      name="acpo_adaptive", statistics_scope="microbatch"
  ).statistics
  assert needs(name="espo").stop_deviation == 0.25
  assert needs(name="ppo", entropy_coefficient=0.1).entropy
  assert needs(name="ppo", kl_coefficient=0.1).reference
  assert needs(name="remax").greedy_baseline
  assert not needs(name="topr").group_baseline
  dpo = needs(name="dpo")
  assert dpo.reference and dpo.statistics and dpo.pairs and dpo.group_baseline
  assert dpo.correction_named and not dpo.proximal
  loglinear = needs(name="decoupled_ppo", proximal="loglinear")
  assert loglinear.versions and not loglinear.proximal


@pytest.mark.parametrize("overrides,message", [
    (
        {"name": "sis", "selection_topk": 9},
        "top 9 ids of the proximal.*found 0",
    ),
    (
        {"name": "cppo_prefix", "divergence": "topk_kl"},
        "top 20 ids of the behavior",
    ),
    ({"name": "ppo", "proximal": "loglinear"}, "policy_version"),
])
def test_terms_that_lack_what_the_objective_reads(overrides, message):
  spec = algorithms.build(overrides)
  batch = loss_batches.golden_terms(
      proximal_logprobs=loss_batches.GOLDEN["inputs"]["logp_old"]
  )
  with pytest.raises(ValueError, match=message):
    objective.token_losses(spec, batch)


def test_a_sequence_ratio_means_over_sequences_unless_told():
  spec = algorithms.build({"name": "rloo", "ratio": "sequence"})
  assert spec.choice("aggregation") == "seq-mean-token-mean"
  spec = algorithms.build(
      {"name": "rloo", "ratio": "sequence", "aggregation": "token-mean"}
  )
  assert spec.choice("aggregation") == "token-mean"


def test_kl_thresholds_follow_the_divergence():
  spec = algorithms.build({"name": "cppo_prefix", "divergence": "binary_kl"})
  assert (spec.trust_region.threshold, spec.trust_region.rate) == (0.1, 0.002)
  spec = algorithms.build({"name": "dppo_divergence", "divergence": "topk_kl"})
  assert spec.trust_region.threshold == 0.05


def test_base_config_lists_every_key(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT))
  sys.modules.pop("configs.base", None)
  from configs import base  # pylint: disable=g-import-not-at-top

  section = base.get_config().objective
  assert set(section) == set(algorithms.KEYS)
  for key, (kind, _) in algorithms.KEYS.items():
    assert section.get_type(key) is kind, key
  assert all(v is None for k, v in section.items() if k != "name")
  text = (ROOT / "configs/base.py").read_text()
  for key in algorithms.KEYS:
    line = re.search(rf"(#.*)\n  config\.objective\.{key} =", text)
    assert line, f"{key} has no comment"


def test_no_key_belongs_to_two_parts_of_one_spec():
  slots = {}
  for slot, _, kind in spec_lib.all_parts():
    for key in parts.keys(kind):
      slots.setdefault(key, set()).add(slot)
  assert all(len(found) == 1 for found in slots.values())


def test_table_has_one_row_per_algorithm():
  rows = algorithms.table().splitlines()[2:]
  assert len(rows) == len(algorithms.REGISTRY)
