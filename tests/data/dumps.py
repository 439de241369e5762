"""Rows as other systems dump them, of one small response each.

The tokenizer is that of bytes: "ab" is [97, 98], 257 ends a response.
"""

from collections.abc import Mapping
import copy
from typing import Any

from jaxrl_llm.data import drafts
from jaxrl_llm.data import importing
from jaxrl_llm.data import layouts
from jaxrl_llm.data import tokenizer as tokenizer_lib

TOKENIZER = tokenizer_lib.load("bytes")
# A model may know more ids than its tokenizer.
VOCABULARY = 272
PROMPT = "<|bos|>1+1?\n"
PROMPT_IDS = [256, *b"1+1?\n"]
RESPONSE_IDS = [*b"2", 257]
LOGPROBS = [-0.5, -0.25]
MESSAGES = [{"role": "user", "content": "1+1?"}]


def _top(token: str, logprob: float) -> dict[str, Any]:
  return {"token": token, "logprob": logprob, "bytes": None}


# An entry of logprobs.content; the most likely token is another one.
_CONTENT = [
    {**_top("2", -0.5), "top_logprobs": [_top("3", -0.4), _top("2", -0.5)]},
    {**_top("<|eos|>", -0.25), "top_logprobs": [_top("<|eos|>", -0.25)]},
]
ROWS: Mapping[str, dict[str, Any]] = {
    "openai_chat": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "messages": MESSAGES,
        "reference_answer": "2",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "2"},
            "logprobs": {"content": _CONTENT},
            "finish_reason": "stop",
            "stop_reason": None,
            "reward": 1.0,
        }],
    },
    "openai_completions": {
        "id": "cmpl-1",
        "object": "text_completion",
        "prompt": PROMPT,
        "reference_answer": "2",
        "choices": [{
            "index": 0,
            "text": "2",
            "logprobs": {
                "tokens": ["token_id:50", "token_id:257"],
                "token_logprobs": LOGPROBS,
                "top_logprobs": [{"token_id:51": -0.4}, {}],
                "text_offset": [0, 1],
            },
            "finish_reason": "stop",
            "reward": 1.0,
        }],
    },
    "vllm": {
        "request_id": "0",
        "prompt": PROMPT,
        "prompt_token_ids": PROMPT_IDS,
        "reference_answer": "2",
        "outputs": [{
            "index": 0,
            "text": "2",
            "token_ids": RESPONSE_IDS,
            "cumulative_logprob": -0.75,
            "logprobs": [
                {"51": {"logprob": -0.4, "rank": 1},
                 "50": {"logprob": -0.5, "rank": 2}},
                {"257": {"logprob": -0.25, "rank": 1}},
            ],
            "finish_reason": "stop",
            "reward": 1.0,
        }],
    },
    "verl": {
        "input": PROMPT, "output": "2", "gts": "2", "score": 1.0, "step": 3,
        "acc": True,
    },
    "verl_agent_loop": {
        "uid": "9f1c",
        "prompt_ids": PROMPT_IDS,
        "response_ids": RESPONSE_IDS,
        "response_mask": [1, 1],
        "response_logprobs": LOGPROBS,
        "reward_score": 1.0,
        "num_turns": 2,
        "ground_truth": "2",
        "step": 3,
    },
    "trl": {
        "prompt": MESSAGES,
        "prompt_ids": PROMPT_IDS,
        "completion_ids": RESPONSE_IDS,
        "logprobs": LOGPROBS,
        "reward": 1.0,
        "answer": "2",
        "step": 3,
    },
    "trl_rollout": {
        "prompt_ids": [PROMPT_IDS],
        "completion_ids": [RESPONSE_IDS],
        "logprobs": [[[value] for value in LOGPROBS]],
        "reward": [1.0],
        "answer": ["2"],
        "step": 3,
    },
    "trl_completions": {
        "step": 3,
        "prompt": MESSAGES,
        "completion": [{"role": "assistant", "content": "2"}],
        "accuracy_reward": 1.0,
        "advantage": 0.7,
    },
    "open_instruct": {
        "step": 3,
        "sample_idx": 0,
        "prompt_idx": 0,
        "prompt_tokens": PROMPT_IDS,
        "response_tokens": RESPONSE_IDS,
        "reward": 1.0,
        "advantage": 0.7,
        "finish_reason": "stop",
        "dataset": "gsm8k",
        "ground_truth": "2",
        "request_info": {"num_calls": 0, "tool_calleds": False},
        "logprobs": LOGPROBS,
    },
}
# Decoded text alone: no ids, no log-probs, no end token.
TEXT_ONLY = ("verl", "trl_completions")
# Untruncated sampling at temperature 1.
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


def changed(path: str, value, name="vllm"):
  """Returns a row with another value at a path."""
  row = copy.deepcopy(ROWS[name])
  *parents, last = path.split(".")
  place = row
  for part in parents:
    place = place[int(part)] if isinstance(place, list) else place[part]
  if value is None:
    del place[last]
  else:
    place[last] = value
  return row
