r"""The final answer of a response: where it stands and how it is spelt.

Statements that mark an answer are `\boxed{}`, `\fbox{}`, `<answer>`, `####`,
`Answer:` and "the answer is". The last one wins, because a later statement
retracts an earlier one; a final box or tag that never closes gives no answer.
Only without any of them is the end of the text searched for an answer.
Nothing here evaluates what it reads, and every scan is linear in the text.
"""

import dataclasses
import re

from jaxrl_llm.rollout import answer_markers

# Characters beyond which an answer is taken as it is.
_LONGEST = 1000

_STATEMENT = re.compile(
    r"\b(?:answers?|(?:correct|right) (?:option|choice))\b"
    r"(?:\s+(?:to|of|for)\s[^.\n:]{0,100}?)?[\s*_]*"
    r"(?::|=|[-\u2013\u2014](?=\s)|\b(?:is|are|was|equals"
    r"|(?:must|should|would|will) be)\b)"
    r"\s*:?[*_\s]*|^[#*_ \t]*(?:final )?answer[*_: \t]*\n\s*",
    re.IGNORECASE | re.MULTILINE,
)
_BOLD = re.compile(r"(?<![^\s:=(])\*\*(?=\S)(.+?)(?<=\S)\*\*(?![\w*])")
_HEDGE = re.compile(
    r"(?:approximately|about|around|roughly|nearly|exactly|simply|just"
    r"|equal to|given by)\s+",
    re.IGNORECASE,
)
_COMMON_WORDS = frozenset(
    "and or then to for of is are was now at in on from per each with so but"
    " the he she they it has have".split()
)
_LEADING_WORDS = re.compile(
    r"(?:,\s*)?"
    r"(?:(?!sin|cos|tan|log|ln|exp|sqrt|pi|not\b|or\b)[A-Za-z]{2,}[,:]?\s+)+"
    r"(?=[-+$\\(]*\d)"
)
_SENTENCE_END = re.compile(r"[.!?](?=[\s*_\"')]|$)")
_DISPLAYS = (("$$", "$$"), (r"\[", r"\]"), (r"\(", r"\)"), ("$", "$"))
_MATH = re.compile(
    r"\$\$(.{1,999}?)\$\$|\\\[(.{1,999}?)\\\]|\\\((.{1,999}?)\\\)"
    r"|(?<![\\$])\$([^$\n]+)\$",
    re.DOTALL,
)
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])|(?<=[=:]))"
    r"(?:[-+\u2212](?=\\?[$€£]?[\d.])|(?<=[=:] )[-\u2212] )?\\?[$€£]?\s?"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))"
    r"(?:[eE][-+]?\d+)?(?:/\d+)?(?:\s?\\?%)?"
)
_OPENING = re.compile(
    r"(?:so|thus|hence|therefore|then|finally|it is|it's|that is|we get)\b"
    r"[,:]?\s*",
    re.IGNORECASE,
)
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z(])")
_CLEAN = re.compile(
    r"[*_$\s]*[-+\u2212]?\s*\\?[$€£]?\s*[\d.,/]*\d(?:\s?\\?%)?"
    r"(?:\s+[A-Za-z]+){0,2}[*_$\s]*"
)


@dataclasses.dataclass(frozen=True)
class Extraction:
  """What a response gives as its final answer.

  Attributes:
    text: the answer as spelt, without its marker; None when there is none.
    explicit: whether a complete statement marked it.
  """

  text: str | None
  explicit: bool


def extract(response: str) -> Extraction:
  """Finds the final answer of a response; see the module's rules."""
  response = response.rpartition("</think>")[2]
  strong, closed = answer_markers.last(response)
  if not closed:
    return Extraction(None, False)
  start = strong[1] if strong else 0
  stated = _last_statement(response, start, clean=strong is not None)
  if stated is not None:
    return Extraction(stated, True)
  if strong is not None:
    text = unwrap(strong[2])
    if not response.startswith("\\", strong[0]):
      stated = _last_statement(text, 0, clean=False)
      text = stated or _without_prose(text)
    return Extraction(text or None, bool(text))
  return Extraction(_unmarked(response), False)


def last_number(text: str) -> str | None:
  """Returns the last number of a text as spelt, or None.

  A comma or full stop after it, a thousands separator and a currency or
  percent sign are understood; the minus of a difference is no sign.
  """
  for line in reversed(text.splitlines()):
    matches = [match[0].strip() for match in _NUMBER.finditer(line)]
    if matches:
      return matches[-1]
  return None


def unwrap(text: str) -> str:
  """Removes inner markers, emphasis, quotes and a closing full stop."""
  text = text.strip()
  if len(text) > _LONGEST:
    return text
  marked, closed = answer_markers.last(text)
  if not closed:
    return ""
  if marked is not None and marked[0] == 0 and marked[1] >= len(text) - 2:
    return unwrap(marked[2])
  for mark in ("***", "**", "__", "`", '"', "*"):
    size = len(mark)
    if len(text) > 2 * size and text[:size] == mark == text[-size:]:
      text = text[size:-size].strip()
  text = _BOLD.sub(r"\1", text).strip("*").strip()
  if text.endswith(".") and not text.endswith(".."):
    text = text[:-1].strip()
  return text


def _last_statement(text: str, start: int, clean: bool) -> str | None:
  """Returns what the last "answer is …" after `start` states.

  Args:
    text: the response.
    start: index from which to search.
    clean: accept only a number or mathematics, which is what it takes to
      overrule a box that came earlier.
  """
  matches = list(_STATEMENT.finditer(text, start))
  for match in reversed(matches):
    content = _statement_content(text[match.end():])
    if not content or re.match(r"(?i)not\b", content):
      continue
    if not clean:
      return _without_prose(unwrap(content))
    if _CLEAN.fullmatch(content) or _is_math(content):
      return unwrap(content)
  return None


def _is_math(text: str) -> bool:
  """Says whether a text is one display of mathematics."""
  return any(
      text.startswith(left) and text.endswith(right) and len(text) > 2
      for left, right in _DISPLAYS
  )


def _statement_content(rest: str) -> str:
  """Cuts a statement at the end of its display, sentence or line."""
  rest = rest.lstrip()
  hedge = _HEDGE.match(rest)
  rest = rest[hedge.end():] if hedge else rest
  for left, right in _DISPLAYS[:3]:
    if rest.startswith(left):
      end = rest.find(right, len(left))
      if end > 0:
        rest = rest[:end + len(right)] + rest[end + len(right):].split("\n")[0]
        break
  else:
    rest = rest.partition("\n")[0]
  inside = False
  ends = {match.start() for match in _SENTENCE_END.finditer(rest)}
  for index, character in enumerate(rest):
    inside ^= character == "$" and rest[index - 1:index] != "\\"
    if index in ends and (not inside or "$" not in rest[index:]):
      return rest[:index].strip()
  return rest.strip()


def _without_prose(text: str) -> str:
  """Takes the number or formula out of a sentence; other text as it is."""
  text = re.split(r"\s(?:because|since|as|which|so)\s", text)[0].strip()
  leading = _LEADING_WORDS.match(text)
  text = text[leading.end():] if leading else text
  if len(_PROSE_WORD.findall(re.sub(_MATH, "", text))) < 2:
    return text
  formulas = _MATH.findall(text)
  if formulas and not re.search(r"\$\s*(?:,|and|or)", text):
    return max(formulas[-1], key=len).strip()
  numbers = [match[0].strip() for match in _NUMBER.finditer(text)]
  if len(numbers) == 1 or (numbers and not re.match(r"[-+$\\\d]", text)):
    if not formulas:
      leading = text.startswith(numbers[0])
      return text if leading and len(numbers) == 1 else numbers[-1]
  return text


def _unmarked(response: str) -> str | None:
  """Searches the end of a response that marks no answer."""
  response = _without_opening(unwrap(response))
  if not response:
    return None
  words = _PROSE_WORD.findall(re.sub(_MATH, "", response))
  bare = not words or _CLEAN.fullmatch(response)
  if "\n" not in response and len(words) < 3 and (
      bare or not re.search(r"\d|\$", response)
  ):
    return response
  formulas = [
      match for match in _MATH.finditer(response) if not _is_prose(match[0])
  ]
  numbers = list(_NUMBER.finditer(response))
  if formulas and (not numbers or numbers[-1].start() < formulas[-1].end()):
    return next(group for group in formulas[-1].groups() if group).strip()
  if numbers:
    return numbers[-1][0].strip()
  return response.splitlines()[-1].strip() if len(response) < 200 else None


def _is_prose(formula: str) -> bool:
  """Finds words between two dollar signs that are currency."""
  words = _PROSE_WORD.findall(re.sub(r"\\text\s*\{[^{}]*\}", "", formula))
  return any(word.lower() in _COMMON_WORDS for word in words)


def _without_opening(text: str) -> str:
  """Removes "So", "Therefore," and the like at the start."""
  opening = _OPENING.match(text)
  return text[opening.end():] if opening else text
