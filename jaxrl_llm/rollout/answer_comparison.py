r"""Whether two final answers say the same.

Answers are normalised, taken apart by structure (choices, labels, lists, sets,
tuples, intervals, unions, matrices), and compared part by part: numbers
exactly, words by spelling, formulas by `symbolic`. Order counts in tuples and
not in lists and sets; brackets count, so `[1,2]` is not `(1,2)`.
"""

import itertools
import re

from jaxrl_llm.rollout import answer_numbers
from jaxrl_llm.rollout import answer_structure
from jaxrl_llm.rollout import answer_text
from jaxrl_llm.rollout import answer_units
from jaxrl_llm.rollout import answer_words

# An answer beyond these equals only its own spelling.
_LONGEST = 1000
_DEEPEST = 30


class Comparison:
  """Compares a gold answer with answers; holds what the question allows.

  Attributes:
    percent_asked: the question asks for a percentage, so that a percent sign
      is a unit.
    symbolic: whether formulas may be compared; if not, `undecided` is set
      where a comparison of formulas would have been needed.
  """

  def __init__(self, percent_asked: bool = False, symbolic: bool = True):
    self.percent_asked = percent_asked
    self.symbolic = symbolic
    self.undecided = False

  def equal(self, gold: str, answer: str) -> bool:
    """Compares two answers as spelt in the data and by the model."""
    gold, answer = gold.strip(), answer.strip()
    if not gold or not answer:
      return False
    if any(map(_is_unreadable, (gold, answer))):
      return gold == answer
    gold, answer = map(answer_text.normalise, (gold, answer))
    return bool(gold and answer) and self._equal(gold, answer)

  def _equal(self, gold: str, answer: str) -> bool:
    """Compares normalised answers: the first rule that can decides."""
    gold, answer = map(answer_structure.without_membership, (gold, answer))
    for compare in (
        self._by_value, answer_words.compare_words, self._by_choice,
        self._by_relation, self._by_structure, self._by_approximation,
        self._by_base,
    ):
      verdict = compare(gold, answer)
      if verdict is not None:
        return verdict
    return self._by_formula(gold, answer)

  def _by_value(self, gold: str, answer: str) -> bool | None:
    """Compares equal spellings and plain numbers."""
    if answer_text.compact(gold) == answer_text.compact(answer):
      return True
    numbers = [answer_numbers.read(text) for text in (gold, answer)]
    if all(numbers):
      return answer_numbers.same(*numbers, self.percent_asked)
    return None

  def _by_choice(self, gold: str, answer: str) -> bool | None:
    """Compares letters of choices, `(C) 12` by letter or by content."""
    left, left_content = answer_words.choice(gold)
    right, right_content = answer_words.choice(answer)
    if left and right:
      return left == right
    if right_content:
      return self._equal(gold, right_content)
    if left_content:
      return self._equal(left_content, answer)
    return None

  def _by_relation(self, gold: str, answer: str) -> bool | None:
    """Compares assignments and equations."""
    sides = [answer_structure.equation_sides(text) for text in (gold, answer)]
    if len(sides[0]) == len(sides[1]) == 1:
      return None
    if len(sides[0]) == 1 or len(sides[1]) == 1:
      plain, chain = sorted(sides, key=len)
      value = answer_structure.assigned_value(chain)
      if value is None:
        return False
      return (
          self._equal(gold, value) if chain is sides[1]
          else self._equal(value, answer)
      )
    values = [answer_structure.assigned_value(chain) for chain in sides]
    labels = [answer_structure.label(chain) for chain in sides]
    if all(values):
      if labels[0] == labels[1] or None in labels or any(
          "text" in label for label in labels
      ):
        return self._equal(*values)
    if any(len(chain) != 2 for chain in sides):
      return False
    if all(labels) and all(map(answer_numbers.read, values)):
      return False
    return self._formulas("proportional", tuple(sides[0]), tuple(sides[1]))

  def _by_structure(self, gold: str, answer: str) -> bool | None:
    """Compares lists, sets, tuples, intervals, unions and matrices."""
    left, right = map(answer_structure.parse, (gold, answer))
    if left is None and right is None:
      return None
    left = left or answer_structure.Structure("scalar", (gold,))
    right = right or answer_structure.Structure("scalar", (answer,))
    if {left.kind, right.kind} == {"set", "tuple"}:
      # The one element of the set may be the tuple.
      left, right = (
          each if each.kind == "set"
          else answer_structure.Structure("scalar", (text,))
          for each, text in ((left, gold), (right, answer))
      )
    if not answer_structure.comparable(left, right):
      return False
    if len(left.items) != len(right.items) and "set" not in (
        left.kind, right.kind
    ):
      return False
    if left.kind == right.kind == "matrix" and left.shape != right.shape:
      return False
    if answer_structure.ordered(left, right):
      items = zip(left.items, right.items, strict=True)
      return all(self._equal(*pair) for pair in items)
    return self._unordered(left, right)

  def _unordered(
      self,
      left: answer_structure.Structure,
      right: answer_structure.Structure,
  ) -> bool:
    """Matches each item with one of the other side; sets may repeat items."""
    if "set" in (left.kind, right.kind):
      return all(
          any(self._equal(a, b) for b in right.items) for a in left.items
      ) and all(any(self._equal(a, b) for a in left.items) for b in right.items)
    open_items = list(left.items)
    for item in right.items:
      for candidate in open_items:
        if self._equal(candidate, item):
          open_items.remove(candidate)
          break
      else:
        return False
    return not open_items

  def _by_approximation(self, gold: str, answer: str) -> bool | None:
    """Takes either side of `1/3 \\approx 0.33` as the answer."""
    sides = [
        answer_text.split_top(text, r"\\approx\b") for text in (gold, answer)
    ]
    if len(sides[0]) == len(sides[1]) == 1:
      return None
    pairs = itertools.product(sides[0], sides[1])
    return any(self._equal(*pair) for pair in pairs if all(pair))

  def _by_base(self, gold: str, answer: str) -> bool | None:
    """Compares `1011_{2}`; the gold's base may be left out of an answer."""
    bases = [
        re.fullmatch(r"(-?[0-9A-F]+)_\{?(\d+)\}?", answer_text.compact(text))
        for text in (gold, answer)
    ]
    if bases[0] and not bases[1]:
      return answer_text.compact(answer) == bases[0][1]
    return None if not any(bases) else False

  def _by_formula(self, gold: str, answer: str) -> bool:
    """Compares formulas without their units."""
    (gold, *gold_unit), (answer, *answer_unit) = map(
        answer_units.split, (gold, answer)
    )
    if answer_units.conflict(gold_unit[1], answer_unit[1]):
      return False
    if gold_unit[0] != answer_unit[0]:
      gold, answer = (
          rf"\frac{{{text}}}{{100}}" if unit[0] else text
          for text, unit in ((gold, gold_unit), (answer, answer_unit))
      )
    verdict = self._by_value(gold, answer)
    if verdict is not None:
      return verdict
    if _letters(gold) != _letters(answer) and (
        _letters(gold.lower()) == _letters(answer.lower())
    ):
      return False  # math-verify reads R and r as one symbol.
    if (gold_unit[1] == "degree") != (answer_unit[1] == "degree"):
      gold, answer = (
          rf"\frac{{{text}\pi}}{{180}}" if unit[1] == "degree" else text
          for text, unit in ((gold, gold_unit), (answer, answer_unit))
      )
    for literal, formula in ((gold, answer), (answer, gold)):
      number = answer_numbers.read(literal)
      if number and (number.places or 0) >= answer_numbers.ROUNDED_PLACES:
        if self._formulas("rounds_to", formula, literal, number.places):
          return True
    return self._formulas("equal", gold, answer)

  def _formulas(self, name: str, *arguments) -> bool:
    """Calls `symbolic`; what it refuses equals only its own spelling."""
    if not self.symbolic:
      self.undecided = True
      return False
    # sympy takes most of a second to import: only the process that needs it.
    # pylint: disable-next=g-import-not-at-top
    from jaxrl_llm.rollout import symbolic

    try:
      return bool(getattr(symbolic, name)(*arguments))
    except symbolic.Refusal:
      return False


def equal(gold: str, answer: str, percent_asked: bool = False) -> bool:
  """Says whether an answer equals the gold answer; may compute for long."""
  return Comparison(percent_asked).equal(gold, answer)


def quick_equal(
    gold: str, answer: str, percent_asked: bool = False
) -> bool | None:
  """The same without formulas: None where only formulas could decide."""
  comparison = Comparison(percent_asked, symbolic=False)
  if comparison.equal(gold, answer):
    return True
  return None if comparison.undecided else False


def canonical(answer: str) -> str:
  """Returns a key that answers of the same plain value share, for votes."""
  if _is_unreadable(answer):
    return answer
  text = answer_text.normalise(answer)
  number = answer_numbers.read(text)
  if number is not None:
    return str(number.value / 100 if number.percent else number.value)
  return answer_words.choice(text)[0] or answer_text.compact(text)


def _letters(formula: str) -> set[str]:
  """Returns the variables of a formula."""
  bare = re.sub(r"\\[A-Za-z]+", " ", formula)
  return set(re.findall(r"(?<![\\A-Za-z])[A-Za-z]", bare))


def _is_unreadable(text: str) -> bool:
  """Finds what no one writes as an answer: too long or too deeply nested."""
  if len(text) > _LONGEST:
    return True
  depth = deepest = 0
  for character in text:
    depth += (character in "({[") - (character in ")}]")
    deepest = max(deepest, depth)
  return deepest > _DEEPEST
