"""Rows of other systems' dumps: what is read, and what is refused."""

import copy
import math

import dumps
import numpy as np
import pytest


@pytest.mark.parametrize("name", sorted(set(dumps.ROWS) - {*dumps.TEXT_ONLY}))
def test_layout_is_read(name):
  found = dumps.draft(dumps.ROWS[name], name)
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
  assert "recompute_logprobs" in dumps.refusal(row, name, **given)
  given["recompute_logprobs"] = True
  assert "import_rollouts.missing_eos" in dumps.refusal(row, name, **given)
  found = dumps.draft(row, name, missing_eos="stop", **given)
  assert found.prompt_tokens.tolist() == dumps.PROMPT_IDS
  # No end token is made up: the policy may not have sampled one.
  assert found.response_tokens.tolist() == [50]
  assert found.finish_reason == "stop" and not found.drawn.logprobs.any()


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
    "other ids": ("outputs.0.token_ids", [50, 50], "expected '22'"),
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
    row = dumps.changed(path, value)
  else:
    row[path] = value
  assert expected in dumps.refusal(row)


def test_lost_end_token_is_named_and_may_be_allowed():
  row = dumps.changed("outputs.0.token_ids", [50])
  row["outputs"][0]["logprobs"] = [-0.5]
  assert "the dump says 'stop', and the last token is no" in dumps.refusal(row)
  assert dumps.draft(row, "vllm", missing_eos="stop").finish_reason == "stop"
  row["outputs"][0]["finish_reason"] = "length"
  assert dumps.draft(row, "vllm").finish_reason == "length"
  del row["outputs"][0]["finish_reason"]
  assert "the dump says nothing" in dumps.refusal(row)
  found = dumps.draft(row, "vllm", missing_eos="length")
  assert found.finish_reason == "length"


def test_tool_tokens_are_masked_and_their_log_probs_not_read():
  row = dumps.changed("response_mask", [1, 0, 1], "verl_agent_loop")
  row["response_ids"] = [50, 257, 257]
  row["response_logprobs"] = [-0.5, math.nan, -0.25]
  found = dumps.draft(row, "verl_agent_loop")
  assert found.response_mask.tolist() == [True, False, True]
  assert found.drawn.logprobs.tolist() == [-0.5, 0.0, -0.25]
  row["response_mask"] = [1, 0]
  assert "expected 3 entries" in dumps.refusal(row, "verl_agent_loop")
  row["response_mask"] = [1, 2, 1]
  assert "expected 0 or 1, found 2 at token 1" in dumps.refusal(
      row, "verl_agent_loop"
  )
  row = dumps.changed("request_info", {"tool_calleds": True}, "open_instruct")
  assert "a tool spoke in this response" in dumps.refusal(row, "open_instruct")


def test_texts_that_tokenise_otherwise_are_refused():
  name = "openai_chat"
  content = "choices.0.logprobs.content"
  row = dumps.changed(content, [{"token": "22", "logprob": -0.1}], name)
  assert "gives '2' at token 0, the dump says '22'" in dumps.refusal(row, name)
  cut = [{"token": "22", "logprob": -0.1}, {"token": "", "logprob": -0.1}]
  row = dumps.changed(content, cut, name)
  assert "gives '2' at token 0, the dump says '22'" in dumps.refusal(row, name)
  row = dumps.changed(content, [{"token": "2", "logprob": -0.1}, {}], name)
  assert "expected the text of each token" in dumps.refusal(row, name)
  # Ids make the texts superfluous.
  row = dumps.changed(content, [{"token": "?", "logprob": -0.1}] * 2, name)
  row["choices"][0]["token_ids"] = dumps.RESPONSE_IDS
  assert dumps.draft(row, name).response_tokens.tolist() == dumps.RESPONSE_IDS


def test_a_letter_that_the_limit_cut_is_no_other_text():
  row = dumps.changed("outputs.0.token_ids", [50, 0xC3])
  row["outputs"][0] |= {"finish_reason": "length", "logprobs": [-0.5, -0.5]}
  assert dumps.draft(row, "vllm").response_text == "2\ufffd"
  row["outputs"][0]["text"] = "2\u00e3"
  assert "which the ids decode to" in dumps.refusal(row)


def test_text_beside_log_probs_is_not_tokenised_anew():
  row = dumps.changed("outputs.0.token_ids", None)
  assert "may have been drawn as other tokens" in dumps.refusal(row)


def test_what_is_to_be_graded_needs_an_answer_and_no_reward():
  row = dumps.changed("outputs.0.reward", None)
  assert math.isnan(dumps.draft(row, "vllm", grade=True).reward)
  row["reference_answer"] = " "
  assert "reference_answer: expected the answer to grade by" in dumps.refusal(
      row, grade=True
  )


def test_prompt_that_lost_its_control_tokens_is_refused():
  row = dumps.ROWS["verl"] | {"input": "1+1?\n"}
  given = {"recompute_logprobs": True, "missing_eos": "stop"}
  line = dumps.refusal(row, "verl", **given)
  assert "control tokens such as '<|bos|>'" in line
  found = dumps.draft(row, "verl", plain_text=True, **given)
  assert found.prompt_tokens.tolist() == list(b"1+1?\n")


def test_messages_of_other_things_than_text_are_refused():
  odd = [{"role": "user", "content": [{}]}]
  row = dumps.changed("messages", odd, "openai_chat")
  assert "role and content as texts" in dumps.refusal(row, "openai_chat")


def test_several_responses_of_a_row_are_read_apart():
  row = copy.deepcopy(dumps.ROWS["vllm"])
  row["outputs"].append(row["outputs"][0] | {"reward": 0.0, "logprobs": None})
  first, second = dumps.read(row, "vllm")
  assert first.reward == 1.0 and first.place == "d.jsonl:7, response 0"
  assert str(second).startswith("d.jsonl:7, response 1: logprobs: expected")
