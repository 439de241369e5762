"""Reads rows of another system's dump into drafts of records.

Nothing is guessed: what a dump does not say, the configuration must, or the
row is refused with the key that would say it.
"""

from collections.abc import Iterator, Mapping
import json
from typing import Any

import numpy as np

from jaxrl_llm.data import behavior
from jaxrl_llm.data import drafts as drafts_lib
from jaxrl_llm.data import dump_values
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import layouts
from jaxrl_llm.data import tokenizer as tokenizer_lib


class Reader:
  """Checks the responses of rows, one layout and one tokenizer."""

  def __init__(
      self,
      settings: layouts.ImportSettings,
      tokenizer: tokenizer_lib.Tokenizer,
      vocab_size: int,
  ):
    """Reads nothing yet.

    Args:
      settings: how the dump is read.
      tokenizer: of the model.
      vocab_size: ids of the model are below it; the tokenizer may have fewer.
    """
    self._settings = settings
    self._tokenizer = tokenizer
    self._vocab_size = vocab_size
    self._paths = settings.paths()

  def drafts(
      self, place: str, row: Mapping[str, Any]
  ) -> Iterator[drafts_lib.Draft | ValueError]:
    """Yields each response of a row, or why it is refused."""
    count = 1
    if "responses" in self._paths:
      found = layouts.lookup(row, self._paths["responses"], 0)
      if not isinstance(found, list) or not found:
        yield ValueError(
            f"{place}: responses: expected a list at"
            f" {self._paths['responses']}, found {dump_values.shown(found)};"
            " map it in import_rollouts.fields, or correct the format."
        )
        return
      count = len(found)
    for number in range(count):
      where = f"{place}, response {number}" if count > 1 else place
      values = {
          field: layouts.lookup(row, path, number)
          for field, path in self._paths.items()
          if field != "group"
      }
      try:
        yield self._draft(where, values, self._group(row, number))
      except ValueError as error:
        yield ValueError(f"{where}: {error}.")

  def _group(self, row: Mapping[str, Any], number: int) -> list[Any] | None:
    """Reads what is equal within a group; None where the layout has nothing."""
    if "group" not in self._paths:
      return None
    paths = self._paths["group"].split("+")
    return [layouts.lookup(row, path.strip(), number) for path in paths]

  def _draft(
      self, place: str, values: Mapping[str, Any], group: list[Any] | None
  ) -> drafts_lib.Draft:
    """Checks one response."""
    prompt, question = self._prompt(values)
    tokens = self._response(values)
    sampled_mask = self._mask(values, tokens)
    version = self._settings.policy_version
    if values.get("policy_version") is not None:
      version = dump_values.integer("policy_version", values["policy_version"])
    prompt_text = question or self._tokenizer.decode(
        prompt, skip_special_tokens=True
    )
    return drafts_lib.Draft(
        place=place,
        prompt_tokens=prompt,
        question=question,
        prompt_text=prompt_text,
        response_tokens=tokens,
        response_text=self._tokenizer.decode(tokens, skip_special_tokens=True),
        response_mask=sampled_mask,
        drawn=behavior.read(
            self._settings, values, tokens, sampled_mask, prompt.size
        ),
        finish_reason=dump_values.finish_reason(
            values.get("finish_reason"),
            int(tokens[-1]) in self._tokenizer.stop_ids,
            self._settings.missing_eos,
        ),
        reward=self._reward(values),
        reference_answer=_text(values.get("reference_answer")),
        policy_version=version,
        group=self._group_key(group, prompt, version),
    )

  def _reward(self, values: Mapping[str, Any]) -> float:
    """Reads the reward; NaN where it is to be graded."""
    if self._settings.grade:
      if not _text(values.get("reference_answer")).strip():
        raise ValueError(
            "reference_answer: expected the answer to grade by at"
            f" {self._paths.get('reference_answer', 'no path')}, found nothing;"
            " map it in import_rollouts.fields"
        )
      return float("nan")
    if values.get("reward") is None:
      raise ValueError(
          "reward: expected a number at"
          f" {self._paths.get('reward', 'no path')}, found nothing; map it in"
          " import_rollouts.fields, as reward=path, or set"
          " import_rollouts.grade"
      )
    return dump_values.number("reward", values["reward"])

  def _group_key(
      self, group: list[Any] | None, prompt: np.ndarray, version: int
  ) -> tuple[str | int, ...]:
    """Returns the given group, else prompt and version."""
    if group is None:
      return "prompt", fingerprints.of_tokens(prompt), version
    if any(not isinstance(part, (str, int)) for part in group):
      raise ValueError(
          f"group: expected texts or integers at {self._paths['group']}, found"
          f" {dump_values.shown(group)}; map another field, or unmap it"
          " (import_rollouts.fields=group=) to group by prompt"
      )
    return "given", *group

  def _prompt(self, values: Mapping[str, Any]) -> tuple[np.ndarray, str]:
    """Reads the prompt: its ids and, where it is known, the question."""
    size = self._vocab_size
    question = _text(values.get("question"))
    messages = values.get("messages")
    if isinstance(messages, list):
      question = question or _last_question(messages)
    if values.get("prompt_tokens") is not None:
      given = values["prompt_tokens"]
      return dump_values.token_ids("prompt_tokens", given, size), question
    if isinstance(messages, list):
      ids = self._tokenizer.apply_chat_template(messages)
      return np.array(ids, np.int32), question
    text = values.get("prompt_text")
    if isinstance(messages, str) and text is None:
      text = messages
    if not isinstance(text, str) or not text:
      raise ValueError(
          "prompt_tokens: expected ids, a text or messages, found none of"
          " them; map prompt_tokens, prompt_text or messages in"
          " import_rollouts.fields"
      )
    self._check_plain(text)
    return np.array(self._tokenizer.encode(text), np.int32), question

  def _check_plain(self, text: str) -> None:
    """Refuses a prompt whose control tokens were lost while decoding."""
    tokenizer, settings = self._tokenizer, self._settings
    if settings.plain_text or not tokenizer.chat_template:
      return
    turn = tokenizer.render_chat([{"role": "user", "content": "question"}])
    wanted = [token for token in tokenizer.special_tokens if token in turn]
    if wanted and not any(token in text for token in tokenizer.special_tokens):
      raise ValueError(
          f"prompt_text: expected control tokens such as {wanted[0]!r}, which"
          " the chat template writes, found none: decoding has dropped them;"
          " map prompt_tokens or messages, or set import_rollouts.plain_text"
          " where the policy saw the text as it stands"
      )

  def _response(self, values: Mapping[str, Any]) -> np.ndarray:
    """Reads or finds the ids of the response."""
    size, text = self._vocab_size, values.get("response_text")
    if values.get("response_tokens") is not None:
      given = values["response_tokens"]
      tokens = dump_values.token_ids("response_tokens", given, size)
      if isinstance(text, str):
        dump_values.check_text(self._tokenizer, tokens, text)
      return tokens
    if values.get("token_texts") is not None:
      given = values["token_texts"]
      return dump_values.ids_of_texts(
          self._tokenizer, "token_texts", given, size
      )
    if isinstance(text, list):  # trl: a conversation of one message.
      text = _last_content(text)
    if not isinstance(text, str) or not text:
      raise ValueError(
          "response_tokens: expected ids or a text, found neither; map"
          " response_tokens or response_text in import_rollouts.fields"
      )
    if not self._settings.recompute_logprobs:
      raise ValueError(
          "response_tokens: the response is a text, which may have been drawn"
          " as other tokens than it is read as, so no log-prob belongs to"
          " them; dump the ids, or set import_rollouts.recompute_logprobs"
      )
    return np.array(self._tokenizer.encode(text), np.int32)

  def _mask(
      self, values: Mapping[str, Any], tokens: np.ndarray
  ) -> np.ndarray:
    """Reads which tokens the policy sampled; all, where nothing is said."""
    given = values.get("response_mask")
    if given is not None:
      return dump_values.mask("response_mask", given, tokens.size)
    if values.get("tool_called"):
      raise ValueError(
          "response_mask: a tool spoke in this response, and nothing says"
          " which tokens are its; map response_mask, or delete the row"
      )
    stops = np.flatnonzero(np.isin(tokens, self._tokenizer.stop_ids))
    if stops.size and stops[0] + 1 < tokens.size:
      raise ValueError(
          f"response_tokens: expected the stop id {tokens[stops[0]]} at the"
          f" end, found it at token {stops[0]} of {tokens.size}: padding, or"
          " later turns; cut the padding, or map response_mask"
      )
    return np.ones(tokens.size, bool)


def _last_question(messages: list[Any]) -> str:
  """Checks chat messages and returns the last thing that the user said.

  Raises:
    ValueError: no messages of a role and a text.
  """
  for message in messages:
    whole = isinstance(message, Mapping) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )
    if not whole:
      raise ValueError(
          "messages: expected objects with role and content as texts, found"
          f" {dump_values.shown(message)}; map prompt_tokens instead"
      )
  said = [m["content"] for m in messages if m["role"] == "user"]
  return said[-1] if said else ""


def _last_content(messages: list[Any]) -> Any:
  """Returns the text of the one message that a completion consists of."""
  if len(messages) == 1 and isinstance(messages[0], Mapping):
    return messages[0].get("content")
  return None


def _text(value: Any) -> str:
  """Spells a value as text: a list or an object as JSON, None as nothing."""
  if value is None or isinstance(value, str):
    return value or ""
  return json.dumps(value, sort_keys=True, ensure_ascii=False)
