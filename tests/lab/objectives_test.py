"""Names of objectives become specs, or an error that names the remedy."""

import pytest
import tiny_run

from jaxrl_llm.data import index as indices
from jaxrl_llm.lab import objectives
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective


def test_a_name_is_the_registry_s_objective_under_the_correction():
  grpo, topr = objectives.parse("grpo, topr", "bypass")
  wanted = {"name": "grpo", "correction": "bypass"}
  assert grpo == objectives.Entry("grpo", algorithms.build(wanted))
  # Its anchor is the behavior policy already.
  assert topr.spec == algorithms.build({"name": "topr"})


def test_label_and_keys():
  found = objectives.parse(
      "tis=ppo:correction=tis:correction_cap=4:clip_high=0.5,"
      "ppo:trust_region=none",
      "none",
  )
  assert [entry.label for entry in found] == ["tis", "ppo:trust_region=none"]
  assert found[0].spec == algorithms.build({
      "name": "ppo", "correction": "tis", "correction_cap": 4.0,
      "clip_high": 0.5,
  })
  assert found[1].spec == algorithms.build(
      {"name": "ppo", "trust_region": "none", "correction": "none"}
  )
  assert found[1].folder == "ppo-trust_region=none"


@pytest.mark.parametrize(
    "text,expected",
    [
        ("grop", "the nearest is 'grpo'"),
        ("ppo:clip_hihg=1", "the nearest is objective.clip_high"),
        ("ppo:clip_high=much", "expected float, found 'much'"),
        ("ppo:clip_high", "expected KEY=VALUE"),
        ("ppo,ppo", "ppo is there twice"),
        (" , ", "found none"),
        ("=ppo", "expected a label with a letter or digit, found ''"),
        ("..=ppo", "found '..'"),
        (f"{'a' * 201}=ppo", "at most 200 bytes, found 201"),
        # Two bytes each.
        (f"{'ä' * 101}=ppo", "found 202"),
        # Where none is given, the whole entry is the label.
        ("ppo" + ":clip_high=0.2" * 15, "found 213"),
    ],
)
def test_mistakes(text, expected):
  with pytest.raises(ValueError, match="^lab.objectives: ") as caught:
    objectives.parse(text, "none")
  assert expected in str(caught.value)


def test_all_names_every_objective_and_says_what_does_not_take_a_correction():
  found = {entry.label: entry for entry in objectives.parse("all", "none")}
  assert found.keys() == algorithms.REGISTRY.keys()
  assert not any(entry.problem for entry in found.values())
  found = {entry.label: entry for entry in objectives.parse("all", "nonne")}
  # Those of other anchors, and decoupled_ppo, name a correction themselves.
  for label, entry in found.items():
    spec = algorithms.REGISTRY[label].spec
    named = objective.requirements(spec).correction_named
    assert bool(entry.problem) == (not named), label


def test_what_is_named_must_be_comparable():
  problems = {"ppo": "", "vapo": "a critic."}
  assert objectives.refused("all", problems) == {"vapo": "a critic."}
  assert objectives.refused("ppo", {"ppo": ""}) == {}
  for text, found in (
      ("ppo,vapo", problems), (" all ", {"vapo": "a critic."})
  ):
    with pytest.raises(ValueError, match="lab.objectives: vapo: a critic."):
      objectives.refused(text, found)


def test_what_an_objective_lacks():
  index = indices.Index.of(tiny_run.make_rollouts())
  problem = lambda name: objectives.lacking(
      algorithms.build({"name": name}), index
  )
  assert "a critic" in problem("vcppo")
  assert "8 of 8 groups have none" in problem("remax")
  assert problem("grpo") == problem("dpo") == ""
