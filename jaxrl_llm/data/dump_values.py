"""Checks of single values of a dump; each error names field and remedy."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from jaxrl_llm.data import tokenizer as tokenizer_lib

# Servers write this for a log-prob that they do not have.
_STAND_IN = -9999.0
_FINISH = {
    "stop": "stop",
    "eos": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "max_tokens": "length",
    "abort": "error",
    "error": "error",
}
_SHOWN = 60


def shown(value: Any) -> str:
  """Spells a value for a message, shortened."""
  text = repr(value)
  return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def number(field: str, value: Any) -> float:
  """Reads a finite number, or NaN.

  Raises:
    ValueError: it is none.
  """
  if isinstance(value, (bool, np.bool_)):
    return float(value)
  if not isinstance(value, (int, float)) or math.isinf(value):
    raise ValueError(f"{field}: expected a number, found {shown(value)}")
  return float(value)


def integer(field: str, value: Any) -> int:
  """Reads an integer ≥ 0.

  Raises:
    ValueError: it is none.
  """
  if type(value) is not int or value < 0:
    raise ValueError(
        f"{field}: expected an integer ≥ 0, found {shown(value)}"
    )
  return value


def token_ids(field: str, value: Any, vocab_size: int) -> np.ndarray:
  """Reads ids, int32.

  Raises:
    ValueError: no list, an empty one, or an entry that is no id.
  """
  if not isinstance(value, list) or not value:
    raise ValueError(
        f"{field}: expected a list of token ids, found {shown(value)}"
    )
  for place, item in enumerate(value):
    if type(item) is not int or not 0 <= item < vocab_size:
      raise ValueError(
          f"{field}: expected ids from 0 to {vocab_size - 1}, which the model"
          f" knows, found {shown(item)} at token {place}; set model.path to a"
          " model with the tokenizer of the dump"
      )
  return np.array(value, np.int32)


def mask(field: str, value: Any, length: int) -> np.ndarray:
  """Reads a mask, bool [length].

  Raises:
    ValueError: another length, or an entry that is neither 0 nor 1.
  """
  values = value if isinstance(value, list) else []
  if len(values) != length:
    raise ValueError(
        f"{field}: expected {length} entries, as many as response tokens,"
        f" found {len(values) if values else shown(value)}"
    )
  for place, item in enumerate(values):
    if item not in (0, 1):
      raise ValueError(
          f"{field}: expected 0 or 1, found {shown(item)} at token {place}"
      )
  return np.array(values, bool)


def logprobs(
    field: str, value: Any, tokens: np.ndarray, mask: np.ndarray,
    prompt_length: int,
) -> np.ndarray:
  """Reads the log-prob of each sampled token, float32 [R].

  An entry is a number, an object with `logprob`, or one that gives the
  log-probs of several ids, of which the sampled one's is taken. What a masked
  token has is not read: it was not sampled, and gets 0.

  Raises:
    ValueError: another length, or an entry that is no log-prob.
  """
  if not isinstance(value, list):
    raise ValueError(
        f"{field}: expected a list of log-probs, found {shown(value)}"
    )
  if len(value) != len(tokens):
    raise ValueError(_other_length(field, value, len(tokens), prompt_length))
  found = np.zeros(len(tokens), np.float32)
  for place in np.flatnonzero(mask).tolist():
    entry = _of_sampled(field, value[place], int(tokens[place]), place)
    finite = isinstance(entry, (int, float)) and math.isfinite(entry)
    if not finite or not _STAND_IN < entry <= 1e-5:
      raise ValueError(
          f"{field}: expected a finite number ≤ 0, found {shown(entry)} at"
          f" token {place}; the server did not give it: serve again, or set"
          " import_rollouts.recompute_logprobs"
      )
    found[place] = entry
  return found


def finish_reason(
    value: Any, ends_with_stop: bool, missing_eos: str | None
) -> str:
  """Returns the finish reason in the words of the contract.

  Args:
    value: of the dump; None where it has none.
    ends_with_stop: whether the last token is a stop id.
    missing_eos: import_rollouts.missing_eos.

  Raises:
    ValueError: an unknown reason, or a stop without a stop id.
  """
  if value is not None and value not in _FINISH:
    raise ValueError(
        f"finish_reason: expected one of {', '.join(_FINISH)}, found"
        f" {shown(value)}; delete the row, or map another field"
    )
  known = _FINISH.get(value)
  if known in ("length", "error"):
    return known
  if ends_with_stop:
    return "stop"
  if missing_eos is None:
    said = "nothing" if known is None else repr(value)
    raise ValueError(
        f"finish_reason: the dump says {said}, and the last token is no stop"
        " id of the tokenizer: the end token was left out, a stop string ended"
        " the response, or the limit did; dump the end token, or set"
        " import_rollouts.missing_eos to stop or length"
    )
  return missing_eos


def ids_of_texts(
    tokenizer: tokenizer_lib.Tokenizer, field: str, value: Any, vocab_size: int
) -> np.ndarray:
  """Finds the ids of tokens that are given as texts, int32 [R].

  `token_id:7` is 7. Otherwise the joined text is tokenised anew, and every
  token must read as the dump's.

  Raises:
    ValueError: no texts, or other tokens come out.
  """
  entries = value if isinstance(value, list) else [None]
  texts = [
      entry.get("token") if isinstance(entry, Mapping) else entry
      for entry in entries
  ]
  if not texts or not all(isinstance(text, str) for text in texts):
    raise ValueError(
        f"{field}: expected the text of each token, found {shown(value)}"
    )
  numbers = [text.removeprefix("token_id:") for text in texts]
  if all(a != b and b.isdecimal() for a, b in zip(texts, numbers)):
    ids = [int(text) for text in numbers]
    return token_ids(field, ids, vocab_size)
  ids = tokenizer.encode("".join(texts))
  own = [tokenizer.decode([token]) for token in ids]
  if own != texts:
    other = [n for n, pair in enumerate(zip(own, texts)) if len(set(pair)) > 1]
    place = other[0] if other else min(len(own), len(texts))
    raise ValueError(
        f"{field}: tokenised anew, the text gives {_at(own, place)} at token"
        f" {place}, the dump says {_at(texts, place)}; serve with token ids"
        " (vLLM: return_token_ids), or set model.tokenizer to that of the dump"
    )
  return np.array(ids, np.int32)


def check_text(
    tokenizer: tokenizer_lib.Tokenizer, tokens: np.ndarray, text: str
) -> None:
  """Refuses ids that do not decode to the text beside them.

  Spaces at the ends do not count, nor does a letter that the length limit cut
  in two (U+FFFD).

  Raises:
    ValueError: another tokenizer's ids, most likely.
  """
  decoded = tokenizer.decode(tokens, skip_special_tokens=True)
  plain = tokenizer.decode(tokens)
  if _core(text) not in (_core(decoded), _core(plain)):
    raise ValueError(
        f"response_text: expected {shown(decoded)}, which the ids decode to,"
        f" found {shown(text)}; set model.tokenizer to that of the dump, or"
        " unmap the text (import_rollouts.fields=response_text=)"
    )


def _core(text: str) -> str:
  """Drops spaces at the ends, and a letter that is cut in two."""
  return text.rstrip("\ufffd").strip()


def _of_sampled(field: str, entry: Any, token: int, place: int) -> Any:
  """Returns the log-prob of the sampled id out of an entry."""
  if isinstance(entry, list) and len(entry) == 1:
    entry = entry[0]
  if not isinstance(entry, Mapping):
    return entry
  named = entry.get("token")
  if isinstance(named, str) and named.startswith("token_id:"):
    if named != f"token_id:{token}":
      raise ValueError(
          f"{field}: expected the log-prob of the sampled id {token} at token"
          f" {place}, found that of {named}; log-probs and ids are shifted"
      )
  if "logprob" in entry:
    return entry["logprob"]
  if str(token) not in entry:
    raise ValueError(
        f"{field}: expected the log-prob of the sampled id {token} at token"
        f" {place}, found those of {shown(list(entry))}; dump the sampled"
        " one's too"
    )
  return _of_sampled(field, entry[str(token)], token, place)


def _other_length(
    field: str, value: Sequence[Any], length: int, prompt_length: int
) -> str:
  """Says what a wrong number of log-probs is likely to mean."""
  likely = {
      length + prompt_length: "; the prompt's seem to be among them",
      length + prompt_length - 1: "; the prompt's seem to be among them",
      length - 1: "; that of the first or the last token is missing",
      length + 1: "; there is one of a token that the dump left out",
  }.get(len(value), "")
  return (
      f"{field}: expected {length}, as many as response tokens, found"
      f" {len(value)}{likely}; dump those of the response, or set"
      " import_rollouts.recompute_logprobs"
  )


def _at(texts: Sequence[str], place: int) -> str:
  """Spells an entry, or that there is none."""
  return shown(texts[place]) if place < len(texts) else "no token"
