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
    rf"|\(?(?P<over>[-+]?{_DECIMAL})\)?\s*/\s*\(?(?P<under>[-+]?{_DECIMAL})\)?"
    rf"|(?P<head>\d*\.\d*)\\overline\{{(?P<repeat>\d+)\}}"
    rf"|(?P<mantissa>{_DECIMAL})\s*(?:\\times|\\cdot|\*|x)\s*"
    rf"10\^\{{\s*(?P<power>[-+]?\d+)\s*\}}"
    rf"|10\^\{{\s*(?P<alone>[-+]?\d+)\s*\}}"
    rf"|(?P<literal>{_DECIMAL}(?:[eE][-+]?\d+)?)"
    rf")"
)
_CURRENCY = re.compile(
    r"\\\$|\\text\{\s*(?:US\s?)?(?:dollars?|USD|Rs|EUR|GBP)\.?\s*\}"
    r"|(?:US|USD|Rs)\b\.?(?:\s*\\\$)?|[€£¥₹]|\\(?:euro|pounds)(?![A-Za-z])"
)
_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9,
    "trillion": 10**12, "dozen": 12,
}  # fmt: skip
_WORDS = {
    word: number
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve"
        " thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
        " twenty".split()
    )
}
_KNOWN_UNITS = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "mg": "mg milligram",
    "g": "g gram gm",
    "kg": "kg kilogram kilo",
    "lb": "lb pound",
    "oz": "oz ounce",
    "l": "l liter litre",
    "ml": "ml milliliter millilitre",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week wk",
    "month": "month",
    "year": "year yr",
    "mph": "mph",
    "degree": "degree deg",
    "radian": "radian rad",
    "$": "$ dollar usd buck",
    "euro": "euro eur €",
    "pound": "gbp £",
    "cent": "cent",
}
_CANONICAL = {
    spelling: unit
    for unit, spellings in _KNOWN_UNITS.items()
    for spelling in spellings.split()
}
_SHORT_WORDS = frozenset(
    "men man cup day egg cat dog cow box pen pie toy car bag pig hen ant bee"
    " hat mph kmh lbs hrs min sec ft in cm mm km kg mg ml lb oz yd mi hr yr"
    " pm am no pcs pts sq cu ways pounds".split()
)
_UNIT = re.compile(
    r"(?:\s*\\degree\s*(?:\\text\{\s*)?[CFK]?\}?"
    r"|\s*\\text\{[^{}\d]*\}(?:\s*\^\{\d\})?"
    r"(?:\s*/?\s*\\text\{[^{}\d]*\}(?:\s*\^\{-?\d\})?)*"
    r"|\s+[mgshLl](?:/s|/h)?(?:\^\{\d\})?"
    r"|\s*[A-Za-z]{2,}[.]?(?:\^\{\d\})?(?:\s*(?:/|\s)\s*[A-Za-z]+(?:\^\{\d\})?)*)"
)
_FUNCTION = re.compile(r"(?:sin|cos|tan|log|ln|exp|sqrt|mod|pi|lim|max|min\()")


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
  text, percent, unit = split_unit(text)
  bare = text.strip()
  while bare.startswith("(") and bare.endswith(")") and "," not in bare:
    bare = bare[1:-1].strip()
  word = re.sub(r"\\text\{\s*([a-z-]+)\s*\}", r"\1", bare.lower())
  if word in _WORDS:
    return Quantity(Fraction(_WORDS[word]), percent, unit)
  scale = 1
  for name, factor in _SCALES.items():
    shorter = re.sub(rf"\s*(?:\\text\{{\s*)?\b{name}s?\s*\}}?$", "", bare)
    if shorter != bare:
      bare, scale = shorter, factor
  match = _NUMBER.fullmatch(bare.strip().strip("{}") if bare[:1] == "{" else bare)
  if match is None or len(bare) > _LARGEST_LITERAL:
    return None
  value = _value(match)
  if value is None:
    return None
  literal = match["literal"]
  plain = literal is not None and "e" not in literal.lower() and scale == 1
  places = len(literal.partition(".")[2]) if plain else None
  return Quantity(value * scale, percent, unit, places)


def split_unit(text: str) -> tuple[str, bool, str]:
  r"""Splits a normalised answer into core, percent sign and canonical unit.

  Words count as a unit after a number or a formula; letters that may be
  variables (`5x`, `5 ab`) do not.
  """
  text = text.strip()
  unit = ""
  currency = re.match(rf"([-+]?)\s*(?:{_CURRENCY.pattern})\s*(?=[-+\d.\\(])", text)
  if currency:
    symbol = currency[0][-1:].strip()
    unit = _CANONICAL.get(symbol, "$")
    text = currency[1] + text[currency.end():]
  if re.search(r"(?<=[\d}\s])\\%$", text):
    return text[:-2].strip(), True, unit
  if re.search(r"(?<=[\d}\s])\\\$$", text):
    return text[:-2].strip(), False, "$"
  for start in _unit_starts(text):
    tail = text[start:]
    if _UNIT.fullmatch(tail) and _is_unit(tail):
      return text[:start].strip(), False, unit or canonical_unit(tail)
  return text, False, unit


def _unit_starts(text: str) -> list[int]:
  """Indices after a digit or a closing bracket where a unit may begin."""
  return [
      match.end()
      for match in re.finditer(r"[\d})](?=\s*(?:\\text|\\degree|[A-Za-z]))", text)
      if match.end() > 0
  ] + [
      match.end() for match in re.finditer(r"\\[a-z]+(?=\s*\\text\{)", text)
  ]


def _is_unit(tail: str) -> bool:
  tail = tail.strip()
  if tail.startswith("\\"):
    inner = re.sub(r"\\text\{|[{}]", "", tail).strip().lower()
    first = inner.split()[0] if inner.split() else ""
    return first.rstrip("s") not in _SCALES and first not in ("or", "and")
  words = re.findall(r"[A-Za-z]+", tail)
  if words[0].lower().rstrip("s") in _SCALES or _FUNCTION.match(words[0]):
    return False
  if len(words[0]) == 1:
    return words[0] in "mgshLl"
  first = words[0].lower()
  return len(first) >= 4 or first in _SHORT_WORDS or first in _CANONICAL


def canonical_unit(text: str) -> str:
  """Returns one spelling per unit: `square centimeters` is `cm^2`."""
  text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).lower()
  text = text.replace("\\degree", "degree ").replace("{", "").replace("}", "")
  text = re.sub(r"\bper\b", "/", text)
  power = re.search(r"\^\s*(\d)", text)
  exponent = power[1] if power else ""
  if re.search(r"\b(?:square|sq|squared)\b", text):
    exponent = "2"
  if re.search(r"\b(?:cubic|cu|cubed)\b", text):
    exponent = "3"
  text = re.sub(r"\^\s*\d|\b(?:square|sq|squared|cubic|cu|cubed)\b|\.", "", text)
  words = [
      _CANONICAL.get(word, _CANONICAL.get(word.removesuffix("s"), word))
      for word in re.findall(r"[a-z$]+|/", text)
  ]
  return "".join(words) + (f"^{exponent}" if exponent else "")


def units_conflict(left: str, right: str) -> bool:
  """Says whether two units are both known and different."""
  if not left or not right or left == right:
    return False
  known = set(_KNOWN_UNITS)
  return all(
      all(part in known for part in re.split(r"\^\d|/", unit) if part)
      for unit in (left, right)
  )


def same(
    gold: Quantity, answer: Quantity, percent_asked: bool = False
) -> bool:
  """Compares two numbers exactly.

  `50\\%` is 0.5. A gold answer with a percent sign also takes the bare figure,
  as a unit left out; a bare gold takes a percent sign as a unit only where the
  question asks for a percentage.
  """
  if units_conflict(gold.unit, answer.unit):
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
