r"""Plain numbers among answers, read exactly, with their units.

`read` understands integers, decimals, repeating decimals, fractions, mixed
numbers, scientific notation, percentages, currency, scale words and units of
a normalised answer (`answer_text.normalise`). A decimal is the number that it
spells: 3.0001 is not 3. Only a decimal of at least `ROUNDED_PLACES` places
also stands for an exact number that it rounds or cuts off.
"""

import dataclasses
import fractions
import re

from jaxrl_llm.rollout import answer_units

Fraction = fractions.Fraction

ROUNDED_PLACES = 6
_LARGEST_EXPONENT = 3000
_LARGEST_LITERAL = 2000

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:"
    rf"(?P<whole>\d+)\s*\\frac\{{(?P<mixed_a>\d+)\}}\{{(?P<mixed_b>\d+)\}}"
    rf"|(?P<whole2>\d+) (?P<mixed_c>\d+)/(?P<mixed_d>\d+)"
    rf"|\\frac\{{\s*(?P<top>[-+]?{_DECIMAL})\s*\}}"
    rf"\{{\s*(?P<bottom>[-+]?{_DECIMAL})\s*\}}"
    rf"|\(?(?P<over>[-+]?{_DECIMAL})\)?\s*/"
    rf"\s*\(?(?P<under>[-+]?{_DECIMAL})\)?"
    rf"|(?P<head>\d*\.\d*)\\overline\{{(?P<repeat>\d+)\}}"
    rf"|(?P<mantissa>{_DECIMAL})\s*(?:\\times|\\cdot|\*|x)\s*"
    rf"10\^\{{\s*(?P<power>[-+]?\d+)\s*\}}"
    rf"|10\^\{{\s*(?P<alone>[-+]?\d+)\s*\}}"
    rf"|(?P<literal>{_DECIMAL}(?:[eE][-+]?\d+)?)"
    rf")"
)
_WORDS = {
    word: number
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve"
        " thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
        " twenty".split()
    )
}


@dataclasses.dataclass(frozen=True)
class Quantity:
  """A number as written.

  Attributes:
    value: exact value; the percent sign and a degree sign are not applied.
    percent: whether a percent sign follows.
    unit: canonical unit, "" when there is none.
    places: decimal places of a plain decimal literal, else None.
  """

  value: Fraction
  percent: bool = False
  unit: str = ""
  places: int | None = None


def read(text: str) -> Quantity | None:
  """Reads a whole normalised answer as a number, or returns None."""
  text, percent, unit = answer_units.split(text)
  bare = text.strip()
  while bare.startswith("(") and bare.endswith(")") and "," not in bare:
    bare = bare[1:-1].strip()
  word = re.sub(r"\\text\{\s*([a-z-]+)\s*\}", r"\1", bare.lower())
  if word in _WORDS:
    return Quantity(Fraction(_WORDS[word]), percent, unit)
  scale = 1
  for name, factor in answer_units.SCALES.items():
    shorter = re.sub(rf"\s*(?:\\text\{{\s*)?\b{name}s?\s*\}}?$", "", bare)
    if shorter != bare:
      bare, scale = shorter, factor
  bare = bare.strip("{}") if bare[:1] == "{" else bare
  match = _NUMBER.fullmatch(bare)
  if match is None or len(bare) > _LARGEST_LITERAL:
    return None
  value = _value(match)
  if value is None:
    return None
  literal = match["literal"]
  plain = literal is not None and "e" not in literal.lower() and scale == 1
  places = len(literal.partition(".")[2]) if plain else None
  return Quantity(value * scale, percent, unit, places)


def same(
    gold: Quantity, answer: Quantity, percent_asked: bool = False
) -> bool:
  """Compares two numbers exactly.

  `50\\%` is 0.5. A gold answer with a percent sign also takes the bare figure,
  as a unit left out; a bare gold takes a percent sign as a unit only where the
  question asks for a percentage.
  """
  if answer_units.conflict(gold.unit, answer.unit):
    return False
  scaled = [q.value / 100 if q.percent else q.value for q in (gold, answer)]
  if equal_values(scaled[0], scaled[1], gold.places, answer.places):
    return True
  if gold.percent == answer.percent or not (gold.percent or percent_asked):
    return False
  return equal_values(gold.value, answer.value, gold.places, answer.places)


def equal_values(
    left: Fraction,
    right: Fraction,
    left_places: int | None,
    right_places: int | None,
) -> bool:
  """Compares exactly, or by a long decimal against what it rounds."""
  if left == right:
    return True
  if right_places is not None and left_places is None:
    left, right, left_places = right, left, right_places
  elif left_places is None or right_places is not None:
    return False
  if left_places < ROUNDED_PLACES:
    return False
  return abs(right - left) < Fraction(1, 10**left_places)


def _value(match: re.Match) -> Fraction | None:
  """Computes the exact value of a matched number; None when undefined."""
  groups = match.groupdict()
  if groups["whole"] or groups["whole2"]:
    whole = int(groups["whole"] or groups["whole2"])
    top = int(groups["mixed_a"] or groups["mixed_c"])
    bottom = int(groups["mixed_b"] or groups["mixed_d"])
    if top >= bottom:
      return None
    value = whole + Fraction(top, bottom)
  elif groups["top"] or groups["over"]:
    bottom = Fraction(groups["bottom"] or groups["under"])
    if bottom == 0:
      return None
    value = Fraction(groups["top"] or groups["over"]) / bottom
  elif groups["repeat"]:
    head, repeat = groups["head"], groups["repeat"]
    places = len(head.partition(".")[2])
    value = Fraction(head if head != "." else "0") + Fraction(
        int(repeat), (10 ** len(repeat) - 1) * 10**places
    )
  else:
    power = groups["power"] or groups["alone"]
    literal = groups["literal"] or groups["mantissa"] or "1"
    exponent = power or literal.lower().partition("e")[2] or "0"
    if abs(int(exponent)) > _LARGEST_EXPONENT:
      return None
    value = Fraction(literal) * Fraction(10) ** int(power or 0)
  return -value if groups["sign"] == "-" else value
