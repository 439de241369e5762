"""The structure of a normalised answer: lists, sets, tuples, relations."""

from collections.abc import Iterable
import dataclasses
import re

from jaxrl_llm.rollout import answer_text

_RELATION = r"\\le\b|\\ge\b|<|>"
_EQUALS = r"(?<![<>!\\])=(?!=)"
_LABEL = re.compile(
    r"(?:[A-Za-z]|\\[a-z]+)(?:_\{?\w+\}?|')*(?:\s*\([^()=]*\))?"
    r"|\\text\{[^{}]*\}|\(\s*[A-Za-z]\w*(?:\s*,\s*[A-Za-z]\w*)+\s*\)"
)
_MATRIX = re.compile(
    r"\\begin\{([pbBvV]?)(?:small)?matrix\}(.*)\\end\{\1(?:small)?matrix\}",
    re.DOTALL,
)
_ARRAY = re.compile(
    r"[(\[]\s*\\begin\{array\}\s*(?:\{[^{}]*\})?(.*)\\end\{array\}\s*[)\]]",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Structure:
  """A compound answer.

  Attributes:
    kind: list (bare, unordered), set, tuple (also intervals), union, matrix,
      scalar.
    items: normalised parts.
    brackets: opening and closing bracket of a tuple.
    shape: rows and columns of a matrix.
  """

  kind: str
  items: tuple[str, ...]
  brackets: str = ""
  shape: tuple[int, int] = (0, 0)


def parse(text: str) -> Structure | None:
  """Reads a normalised answer as a structure; None for a scalar."""
  text = _within_parentheses(text.strip())
  if text == r"\emptyset":
    return Structure("set", ())
  matrix = _matrix(text)
  if matrix is not None:
    return matrix
  interval = _interval(text)
  if interval is not None:
    return interval
  pieces = answer_text.split_top(text, r"\\cup\b|(?<=[)\]])\s*U\s*(?=[(\[])")
  if len(pieces) > 1:
    return Structure("union", tuple(pieces))
  pieces = answer_text.split_top(text, "[,;]")
  if len(pieces) > 1:
    pieces = [piece for piece in pieces if piece]
    return Structure("list", tuple(_expand(pieces)))
  enclosed = _enclosed(text)
  if enclosed is not None:
    return enclosed
  return Structure("list", tuple(_expand([text]))) if r"\pm" in text else None


def comparable(left: Structure, right: Structure) -> bool:
  """Says whether two kinds may be equal at all.

  A set and a tuple are not asked for: the tuple is an item of the set then.
  """
  kinds = {left.kind, right.kind}
  if kinds == {"tuple"}:
    return left.brackets == right.brackets
  if "tuple" in kinds and kinds & {"list", "matrix"}:
    row, other = (left, right) if left.kind == "tuple" else (right, left)
    if other.kind == "matrix" and 1 not in other.shape:
      return False
    return row.brackets == "()" or (
        row.brackets == "[]" and len(row.items) != 2
    )
  if "matrix" in kinds:
    return kinds == {"matrix"}
  if "scalar" in kinds:
    other = left if right.kind == "scalar" else right
    return other.kind in ("set", "list", "union") and len(other.items) == 1
  return True


def ordered(left: Structure, right: Structure) -> bool:
  """Says whether items are compared in order."""
  return bool({left.kind, right.kind} & {"tuple", "matrix"}) and not (
      "union" in (left.kind, right.kind)
  )


def without_membership(text: str) -> str:
  r"""Drops `x \in` before a set; reads `\{x \mid …\}` as its condition."""
  builder = re.fullmatch(
      r"\\\{\s*([A-Za-z])\s*(?:\\mid\b|\||:)\s*(\1.*|.*\1)\\\}", text
  )
  if builder:
    return builder[2].strip()
  pieces = answer_text.split_top(text, r"\\in\b")
  if len(pieces) == 2 and _LABEL.fullmatch(pieces[0]):
    return pieces[1]
  return text


def equation_sides(text: str) -> list[str]:
  """Splits a chain of equations at its equals signs, outside lists."""
  if len(answer_text.split_top(text, "[,;]")) > 1:
    return [text]
  return answer_text.split_top(text, _EQUALS)


def label(chain: list[str]) -> str | None:
  """Returns the name on the left (or right) of an assignment, or None."""
  for side in (chain[0], chain[-1]):
    if _LABEL.fullmatch(side) and not re.fullmatch(r"\\(?:pi|infty)", side):
      return answer_text.compact(side)
  return None


def assigned_value(chain: list[str]) -> str | None:
  """Returns what `x = … = value` assigns; None for an equation to solve."""
  if _LABEL.fullmatch(chain[0]):
    return chain[-1]
  if _LABEL.fullmatch(chain[-1]) and len(chain) == 2:
    return chain[0]
  constant = all(
      not re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", side))
      for side in chain[:-1]
  )
  return chain[-1] if constant and all(chain) else None


def _within_parentheses(text: str) -> str:
  """Removes parentheses around a scalar."""
  while text.startswith("(") and answer_text.closing(text, 0) == len(text) - 1:
    inner = text[1:-1].strip()
    if len(answer_text.split_top(inner, "[,;]")) > 1 or not inner:
      break
    text = inner
  return text


def _enclosed(text: str) -> Structure | None:
  r"""Reads `\{…\}`, `(…)`, `[…]` and half-open intervals."""
  if text.startswith(r"\{") and text.endswith(r"\}"):
    pieces = answer_text.split_top(text[2:-2], "[,;]")
    if r"\mid" in text or "|" in text or ":" in text:
      return None
    return Structure("set", tuple(_expand(p for p in pieces if p)))
  if text[:1] in "([" and text[-1:] in ")]" and text and (
      answer_text.closing(text, 0) == len(text) - 1
  ):
    pieces = answer_text.split_top(text[1:-1], "[,;]")
    if len(pieces) > 1 or text[0] == "[":
      return Structure("tuple", tuple(pieces), text[0] + text[-1])
  return None


def _expand(items: Iterable[str]) -> list[str]:
  r"""Writes out `\pm`: first with plus, then with minus."""
  expanded = []
  for item in items:
    signs = (" + ", " - ") if r"\pm" in item else ("",)
    for sign in signs:
      piece = re.sub(r"\\pm\s*", sign, item).strip() if sign else item
      expanded.append(re.sub(r"^\+\s*|(?<==)\s*\+\s*", "", piece))
  return expanded


def _matrix(text: str) -> Structure | None:
  """Reads a matrix row by row; a determinant is a scalar."""
  match = _MATRIX.fullmatch(text)
  array = _ARRAY.fullmatch(text)
  if array:
    body = array[1]
  elif match and match[1] not in ("v", "V"):
    body = match[2]
  else:
    return None
  rows = [
      [cell.strip() for cell in answer_text.split_top(row, "&")]
      for row in re.split(r"\\\\", body)
      if row.strip()
  ]
  if not rows or len({len(row) for row in rows}) != 1:
    return None
  cells = tuple(cell for row in rows for cell in row)
  return Structure("matrix", cells, shape=(len(rows), len(rows[0])))


def _interval(text: str) -> Structure | None:
  """Reads `a < x \\le b`, `x > a` and the like as an interval."""
  parts = answer_text.split_top(text, _RELATION)
  if len(parts) not in (2, 3) or not all(parts):
    return None
  signs = re.findall(_RELATION, text)
  if len(signs) != len(parts) - 1:
    return None
  less = [sign in ("<", r"\le") for sign in signs]
  closed = [sign in (r"\le", r"\ge") for sign in signs]
  variables = [
      bool(re.fullmatch(r"[A-Za-z]|\\(?:theta|alpha)", p)) for p in parts
  ]
  if len(parts) == 3:
    if less[0] != less[1] or variables != [False, True, False]:
      return None
    low, high = (0, 2) if less[0] else (2, 0)
    open_low, open_high = (0, 1) if less[0] else (1, 0)
    return _bounds(
        parts[low], parts[high], closed[open_low], closed[open_high]
    )
  if sum(variables) != 1:
    return None
  bound = parts[0] if variables[1] else parts[1]
  upper = less[0] == variables[0]
  if upper:
    return _bounds(r"-\infty", bound, False, closed[0])
  return _bounds(bound, r"\infty", closed[0], False)


def _bounds(
    low: str, high: str, closed_low: bool, closed_high: bool
) -> Structure:
  """Makes an interval; a closed end has a square bracket."""
  brackets = ("[" if closed_low else "(") + ("]" if closed_high else ")")
  return Structure("tuple", (low, high), brackets)
