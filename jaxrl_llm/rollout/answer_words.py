"""Answers in words and letters of choices, in their normalised spelling."""

import re

_CHOICE = re.compile(
    r"(?:\\text\{\s*)?(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*\}?\s*)?"
    r"\(?([A-Ja-j])\)?\s*[.:]?\}?"
)
_CHOICE_WITH_CONTENT = re.compile(r"(?:\(([A-J])\)|([A-J])[).:])\s*(\S.*)")
_TEXT_LABEL = re.compile(r"^\\text\{\s*(\(?[A-J][).:]+)\s*\}")
_SYNONYMS = {
    "dne": "doesnotexist",
    "nosolution": r"\emptyset",
    "nosolutions": r"\emptyset",
    "therearenosolutions": r"\emptyset",
    "norealsolution": r"\emptyset",
    "norealsolutions": r"\emptyset",
    "allrealnumbers": r"\mathbb{r}",
    r"(-\infty,\infty)": r"\mathbb{r}",
    "reals": r"\mathbb{r}",
}


def choice(text: str) -> tuple[str | None, str | None]:
  """Reads `C`, `(c)`, `Option C` or `(C) 12`.

  Returns:
    The letter, and what it stands for; None for what is absent.
  """
  match = _CHOICE_WITH_CONTENT.fullmatch(_TEXT_LABEL.sub(r"\1 ", text))
  if match:
    return match[1] or match[2], match[3]
  match = _CHOICE.fullmatch(text)
  if match and (match[1].isupper() or "(" in text):
    return match[1].upper(), None
  return None, None


def _words(text: str) -> str | None:
  """Returns an answer in words, folded; None for mathematics."""
  text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
  folded = re.sub(r"[\s.'\"]", "", text).casefold()
  if folded in _SYNONYMS:
    return _SYNONYMS[folded]
  if re.fullmatch(r"[A-Za-z][A-Za-z '.\-]*", text.strip()) and len(folded) > 1:
    return folded
  return folded if folded in (r"\mathbb{r}", r"\emptyset") else None


def compare_words(gold: str, answer: str) -> bool | None:
  """Compares answers in words; None unless at least one is certainly words."""
  left, right = _words(gold), _words(answer)
  if left is not None and right is not None:
    if left == right:
      return True
    for article in ("the", "an", "a"):
      if left == right.removeprefix(article) or right == left.removeprefix(
          article
      ):
        return True
  for text in (gold, answer):
    if re.fullmatch(r"\s*\\text\{[A-Za-z][A-Za-z '.\-]+\}\s*", text):
      if left != right and not choice(text)[0]:
        return False
  return None
