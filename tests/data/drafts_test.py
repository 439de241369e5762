"""Responses of a dump are numbered and become records."""

import dumps
import pytest

from jaxrl_llm.data import drafts
from jaxrl_llm.data import fingerprints


def numbered(rows, name="trl", **changes):
  found = [dumps.draft(row, name, **changes) for row in rows]
  return drafts.number(found, "lineage", 2)


def test_responses_to_one_prompt_are_a_group():
  row = dumps.ROWS["trl"]
  found = numbered([row, row | {"reward": 0.0}, row | {"step": 4}])
  assert found[0].group_id == found[1].group_id != found[2].group_id
  assert len({rollout.prompt_id for rollout in found}) == 1
  assert [rollout.sample_index for rollout in found] == [0, 1, 2]
  assert len({rollout.record_id for rollout in found}) == 3
  for rollout in found:
    key = ("lineage", 2, rollout.prompt_id, rollout.sample_index)
    assert rollout.record_id == fingerprints.of_record(*key)
    assert (rollout.round, rollout.lineage) == (2, "lineage")
  assert found[2].policy_versions.tolist() == [4, 4]


def test_the_group_of_the_dump_comes_first():
  """CASES D13: a prompt that is posed twice is two groups."""
  row = dumps.ROWS["open_instruct"]
  found = numbered([row, row | {"prompt_idx": 1}], "open_instruct")
  assert found[0].group_id != found[1].group_id
  assert found[0].prompt_id == found[1].prompt_id
  assert found[0].record_id != found[1].record_id


def test_a_group_of_two_prompts_is_refused():
  """CASES D7: prompts and responses that do not belong together."""
  row = dumps.ROWS["verl_agent_loop"]
  other = row | {"prompt_ids": [256, 50]}
  with pytest.raises(ValueError, match="'9f1c'.* another prompt at d.jsonl"):
    numbered([row, other], "verl_agent_loop")
  assert "group: expected texts or integers at uid" in dumps.refusal(
      row | {"uid": None}, "verl_agent_loop"
  )


def test_the_problem_names_the_prompt_as_generation_does():
  (found,) = numbered([dumps.ROWS["trl"]])
  assert found.prompt_text == "1+1?"
  assert found.prompt_id == fingerprints.of_parts("prompt", "1+1?")
