"""Rows of other systems' dumps: what is read, and what is refused."""

import copy
import math

import dumps
import numpy as np
import pytest

from jaxrl_llm.data import drafts
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import importing
from jaxrl_llm.data import layouts
from jaxrl_llm.data import tokenizer as tokenizer_lib

TOKENIZER = tokenizer_lib.load("bytes")
# A model may know more ids than its tokenizer.
VOCABULARY = 272
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def read(row, name, **changes) -> list[drafts.Draft | ValueError]:
  """Reads one row with the settings of untruncated sampling at 1."""
  settings = layouts.ImportSettings(format=name, **(PLAIN | changes))
  reader = importing.Reader(settings, TOKENIZER, VOCABULARY)
  return list(reader.drafts("d.jsonl:7", row))


def refusal(row, name="vllm", **changes) -> str:
  """Returns the one line by which a row is refused."""
  (found,) = read(row, name, **changes)
  assert isinstance(found, ValueError), found
  line = str(found)
  assert line.startswith("d.jsonl:7: ") and line.endswith(".")
  assert "\n" not in line
  return line


def draft(row, name, **changes) -> drafts.Draft:
  (found,) = read(row, name, **changes)
  if isinstance(found, ValueError):
    raise found
  return found


@pytest.mark.parametrize("name", sorted(set(dumps.ROWS) - {*dumps.TEXT_ONLY}))
def test_layout_is_read(name):
  found = draft(dumps.ROWS[name], name)
  assert found.prompt_tokens.tolist() == dumps.PROMPT_IDS
  assert found.response_tokens.tolist() == dumps.RESPONSE_IDS
  np.testing.assert_allclose(found.drawn.logprobs, dumps.LOGPROBS)
  assert not found.drawn.log_kept_mass.any()
  assert (found.reward, found.finish_reason) == (1.0, "stop")
  assert (found.reference_answer, found.response_text) == ("2", "2")
  assert found.response_mask.all() and found.drawn.temperature == 1.0
  dumped = "step" in dumps.ROWS[name]
  assert found.policy_version == (3 if dumped else 0)


@pytest.mark.parametrize("name", dumps.TEXT_ONLY)
def test_text_alone_is_read_only_to_be_recomputed(name):
  row = dumps.ROWS[name]
  given = {"fields": "reward=accuracy_reward"} if "score" not in row else {}
  assert "recompute_logprobs" in refusal(row, name, **given)
  given["recompute_logprobs"] = True
  assert "import_rollouts.missing_eos" in refusal(row, name, **given)
  found = draft(row, name, missing_eos="stop", **given)
  assert found.prompt_tokens.tolist() == dumps.PROMPT_IDS
  # No end token is made up: the policy may not have sampled one.
  assert found.response_tokens.tolist() == [50]
  assert found.finish_reason == "stop" and not found.drawn.logprobs.any()


def changed(path: str, value, name="vllm"):
  """Returns a row with another value at a path."""
  row = copy.deepcopy(dumps.ROWS[name])
  *parents, last = path.split(".")
  place = row
  for part in parents:
    place = place[int(part)] if isinstance(place, list) else place[part]
  if value is None:
    del place[last]
  else:
    place[last] = value
  return row


LOGPROBS = "outputs.0.logprobs"
REFUSED = {
    "none": (LOGPROBS, None, "logprobs: expected the behaviour log-probs at"
             " outputs.*.logprobs, found nothing"),
    "nan": (LOGPROBS, [-0.5, math.nan], "found nan at token 1"),
    "minus infinity": (LOGPROBS, [-math.inf, -0.5], "found -inf at token 0"),
    "stand-in": (LOGPROBS, [-9999.0, -0.5], "found -9999.0 at token 0"),
    "null": (LOGPROBS, [None, -0.5], "found None at token 0"),
    "positive": (LOGPROBS, [0.5, -0.5], "found 0.5 at token 0"),
    "text": (LOGPROBS, ["-0.5", -0.5], "found '-0.5' at token 0"),
    "first missing": (LOGPROBS, [-0.5], "expected 2, as many as response"
                      " tokens, found 1; that of the first or the last"),
    "prompt's too": (LOGPROBS, [-0.1] * 8, "the prompt's seem to be among"),
    "prompt's but one": (LOGPROBS, [-0.1] * 7, "the prompt's seem to be"),
    "most likely only": (LOGPROBS, [{"51": -0.4}, {"257": -0.1}],
                         "sampled id 50 at token 0, found those of ['51']"),
    "shifted": (LOGPROBS, [{"token": "token_id:257", "logprob": -0.1}] * 2,
                "found that of token_id:257; log-probs and ids are shifted"),
    "no reward": ("outputs.0.reward", None, "reward: expected a number at"
                  " outputs.*.reward, found nothing"),
    "reward in words": ("outputs.0.reward", "good", "found 'good'"),
    "endless reward": ("outputs.0.reward", math.inf, "found inf"),
    "no ids": ("outputs.0.token_ids", [], "expected a list of token ids"),
    "foreign id": ("outputs.0.token_ids", [50, 300],
                   "ids from 0 to 271, which the model knows, found 300"),
    "negative id": ("outputs.0.token_ids", [-1, 257], "found -1 at token 0"),
    "id as a truth": ("outputs.0.token_ids", [True, 257], "found True"),
    "padding": ("outputs.0.token_ids", [50, 257, 257], "expected the stop id"
                " 257 at the end, found it at token 1 of 3"),
    "other text": ("outputs.0.text", "3", "expected '2', which the ids decode"),
    "no end": ("outputs.0.token_ids", [50, 50], "expected '22'"),
    "reason": ("outputs.0.finish_reason", "content_filter",
               "found 'content_filter'"),
    "no prompt": ("prompt_token_ids", [], "prompt_tokens: expected a list"),
    "no responses": ("outputs", [], "responses: expected a list at outputs"),
    "greedy": ("temperature", 0.0, "temperature: expected a number > 0"),
    "temperature": ("temperature", "hot", "temperature: expected a number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_row_is_refused_in_one_line(name):
  path, value, expected = REFUSED[name]
  row = copy.deepcopy(dumps.ROWS["vllm"])
  if "." in path or path in row:
    row = changed(path, value)
  else:
    row[path] = value
  assert expected in refusal(row)


def test_lost_end_token_is_named_and_may_be_allowed():
  row = changed("outputs.0.token_ids", [50])
  row["outputs"][0]["logprobs"] = [-0.5]
  assert "the dump says 'stop', and the last token is no" in refusal(row)
  assert draft(row, "vllm", missing_eos="stop").finish_reason == "stop"
  row["outputs"][0]["finish_reason"] = "length"
  assert draft(row, "vllm").finish_reason == "length"
  del row["outputs"][0]["finish_reason"]
  assert "the dump says nothing" in refusal(row)
  assert draft(row, "vllm", missing_eos="length").finish_reason == "length"


def test_tool_tokens_are_masked_and_their_log_probs_not_read():
  row = changed("response_mask", [1, 0, 1], "verl_agent_loop")
  row["response_ids"] = [50, 257, 257]
  row["response_logprobs"] = [-0.5, math.nan, -0.25]
  found = draft(row, "verl_agent_loop")
  assert found.response_mask.tolist() == [True, False, True]
  assert found.drawn.logprobs.tolist() == [-0.5, 0.0, -0.25]
  row["response_mask"] = [1, 0]
  assert "expected 3 entries" in refusal(row, "verl_agent_loop")
  row["response_mask"] = [1, 2, 1]
  assert "expected 0 or 1, found 2 at token 1" in refusal(
      row, "verl_agent_loop"
  )
  row = changed("request_info", {"tool_calleds": True}, "open_instruct")
  assert "a tool spoke in this response" in refusal(row, "open_instruct")


def test_texts_that_tokenise_otherwise_are_refused():
  name = "openai_chat"
  content = "choices.0.logprobs.content"
  row = changed(content, [{"token": "22", "logprob": -0.1}], name)
  assert "gives '2' at token 0, the dump says '22'" in refusal(row, name)
  row = changed(content, [{"token": "2", "logprob": -0.1}, {}], name)
  assert "expected the text of each token" in refusal(row, name)
  # Ids make the texts superfluous.
  row = changed(content, [{"token": "?", "logprob": -0.1}] * 2, name)
  row["choices"][0]["token_ids"] = dumps.RESPONSE_IDS
  assert draft(row, name).response_tokens.tolist() == dumps.RESPONSE_IDS


def test_text_beside_log_probs_is_not_tokenised_anew():
  row = changed("outputs.0.token_ids", None)
  assert "may have been drawn as other tokens" in refusal(row)


def test_what_is_to_be_graded_needs_an_answer_and_no_reward():
  row = changed("outputs.0.reward", None)
  assert math.isnan(draft(row, "vllm", grade=True).reward)
  row["reference_answer"] = " "
  assert "reference_answer: expected the answer to grade by" in refusal(
      row, grade=True
  )


class TestDistribution:
  """Ratios need log π: behavior_logprobs + log_kept_mass."""

  ROW = dumps.ROWS["trl"]

  def test_temperature_must_be_known(self):
    assert "set import_rollouts.temperature" in refusal(
        self.ROW, "trl", temperature=None
    )
    row = self.ROW | {"temperature": 0.5}
    given = {"fields": "temperature=temperature", "logprobs": "tempered"}
    assert draft(row, "trl", **given).drawn.temperature == 0.5

  @pytest.mark.parametrize(
      "given,said",
      [
          ({"temperature": 0.5}, "at temperature 0.5; set"),
          ({"top_p": 0.9}, "temperature 1, top_p 0.9; set"),
          ({"top_k": 5}, "temperature 1, top_k 5; set"),
          ({"min_p": 0.1}, "temperature 1, min_p 0.1; set"),
          ({"top_p": None, "top_k": None}, "top_p and top_k unknown; set"),
      ],
  )
  def test_what_they_are_of_is_never_guessed(self, given, said):
    line = refusal(self.ROW, "trl", **given)
    assert "nothing says what they are of" in line and said in line

  def test_raw_ones_serve_at_temperature_one_alone(self):
    assert "raw ones say nothing" in refusal(
        self.ROW, "trl", temperature=0.5, logprobs="raw"
    )
    found = draft(self.ROW, "trl", logprobs="raw", top_p=0.9).drawn
    np.testing.assert_allclose(found.logprobs, dumps.LOGPROBS)
    assert found.sampling["top_p"] == 0.9

  def test_sampled_ones_need_the_kept_mass(self):
    given = {"logprobs": "sampled", "top_p": 0.9}
    assert "log_kept_mass: at temperature 1, top_p 0.9" in refusal(
        self.ROW, "trl", **given
    )
    unsaid = {"logprobs": "sampled", "top_k": None}
    assert "set import_rollouts.top_p and top_k" in refusal(
        self.ROW, "trl", **unsaid
    )
    row = self.ROW | {"mass": [-0.125, 0.0]}
    given["fields"] = "log_kept_mass=mass"
    found = draft(row, "trl", **given).drawn
    np.testing.assert_allclose(found.logprobs, dumps.LOGPROBS)
    np.testing.assert_allclose(found.log_kept_mass, [-0.125, 0.0])
    # Of the whole vocabulary: the mass is taken off, the sum stays.
    given["logprobs"] = "tempered"
    found = draft(row, "trl", **given).drawn
    np.testing.assert_allclose(found.logprobs, [-0.375, -0.25])
    np.testing.assert_allclose(
        found.logprobs + found.log_kept_mass, dumps.LOGPROBS
    )


def test_prompt_that_lost_its_control_tokens_is_refused():
  row = dumps.ROWS["verl"] | {"input": "1+1?\n"}
  given = {"recompute_logprobs": True, "missing_eos": "stop"}
  assert "control tokens such as '<|bos|>'" in refusal(row, "verl", **given)
  found = draft(row, "verl", plain_text=True, **given)
  assert found.prompt_tokens.tolist() == list(b"1+1?\n")


def test_messages_of_other_things_than_text_are_refused():
  row = changed("messages", [{"role": "user", "content": [{}]}], "openai_chat")
  assert "role and content as texts" in refusal(row, "openai_chat")


class TestNumber:

  def rollouts(self, rows, name="trl", **changes):
    found = [draft(row, name, **changes) for row in rows]
    return drafts.number(found, "lineage", 2)

  def test_responses_to_one_prompt_are_a_group(self):
    row = dumps.ROWS["trl"]
    found = self.rollouts([row, row | {"reward": 0.0}, row | {"step": 4}])
    assert found[0].group_id == found[1].group_id != found[2].group_id
    assert len({rollout.prompt_id for rollout in found}) == 1
    assert [rollout.sample_index for rollout in found] == [0, 1, 2]
    assert len({rollout.record_id for rollout in found}) == 3
    for rollout in found:
      key = ("lineage", 2, rollout.prompt_id, rollout.sample_index)
      assert rollout.record_id == fingerprints.of_record(*key)
      assert (rollout.round, rollout.lineage) == (2, "lineage")
    assert found[2].policy_versions.tolist() == [4, 4]

  def test_the_group_of_the_dump_comes_first(self):
    """CASES D13: a prompt that is posed twice is two groups."""
    row = dumps.ROWS["open_instruct"]
    found = self.rollouts([row, row | {"prompt_idx": 1}], "open_instruct")
    assert found[0].group_id != found[1].group_id
    assert found[0].prompt_id == found[1].prompt_id
    assert found[0].record_id != found[1].record_id

  def test_a_group_of_two_prompts_is_refused(self):
    """CASES D7: prompts and responses that do not belong together."""
    row = dumps.ROWS["verl_agent_loop"]
    other = row | {"prompt_ids": [256, 50]}
    with pytest.raises(ValueError, match="'9f1c'.* another prompt at d.jsonl"):
      self.rollouts([row, other], "verl_agent_loop")
    assert "group: expected texts or integers at uid" in refusal(
        row | {"uid": None}, "verl_agent_loop"
    )

  def test_the_problem_names_the_prompt_as_generation_does(self):
    (found,) = self.rollouts([dumps.ROWS["trl"]])
    assert found.prompt_text == "1+1?"
    assert found.prompt_id == fingerprints.of_parts("prompt", "1+1?")


def test_several_responses_of_a_row_are_read_apart():
  row = copy.deepcopy(dumps.ROWS["vllm"])
  row["outputs"].append(row["outputs"][0] | {"reward": 0.0, "logprobs": None})
  first, second = read(row, "vllm")
  assert first.reward == 1.0 and first.place == "d.jsonl:7, response 0"
  assert str(second).startswith("d.jsonl:7, response 1: logprobs: expected")


@pytest.mark.parametrize(
    "given,expected",
    [
        ({"format": "verlx"}, "import_rollouts.format: expected one of"),
        ({"fields": "rewards=x"}, "the nearest field is 'reward'"),
        ({"fields": "reward"}, "expected field=path"),
        ({"logprobs": "warm"}, "import_rollouts.logprobs: expected one of"),
        ({"missing_eos": "eos"}, "import_rollouts.missing_eos: expected"),
        ({"temperature": 0.0}, "import_rollouts.temperature: expected"),
        ({"round": -1}, "import_rollouts.round: expected"),
        ({"recompute_logprobs": True, "drawn_by_model": True}, "set one"),
        ({"format": "jaxrl_llm", "top_k": 3}, "import_rollouts.top_k: a file"),
    ],
)
def test_settings_that_do_not_fit_are_named(given, expected):
  with pytest.raises(ValueError, match=expected):
    layouts.ImportSettings(**({"format": "trl"} | given))


def test_fields_lie_over_the_layout():
  fields = "reward=meta.scores.1, logprobs="
  settings = layouts.ImportSettings(format="trl", fields=fields)
  paths = settings.paths()
  assert paths["reward"] == "meta.scores.1" and "logprobs" not in paths
  row = {"meta": {"scores": [0.0, 0.5]}}
  assert layouts.lookup(row, paths["reward"], 0) == 0.5
  assert layouts.lookup(row, "meta.scores.*", 1) == 0.5
  for missing in ("meta.scores.2", "meta.scores.x", "meta.x", "x.y"):
    assert layouts.lookup(row, missing, 0) is None
