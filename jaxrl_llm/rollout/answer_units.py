r"""Units, currencies and percent signs of normalised answers.

A unit may be left out of an answer, and one that nothing is known of (apples)
is not compared; two known ones must agree. Letters that may be variables are
no unit: `5x` is not 5, and `5 million` is not 5 either.
"""

import re

SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9,
    "trillion": 10**12, "dozen": 12,
}  # fmt: skip
_CURRENCY = re.compile(
    r"\\\$|\\text\{\s*(?:US\s?)?(?:dollars?|USD|Rs|EUR|GBP)\.?\s*\}"
    r"|(?:US|USD|Rs)\b\.?(?:\s*\\\$)?|[€£¥₹]"
    r"|\\(?:euro|pounds)(?![A-Za-z])"
)
_LEADING_CURRENCY = re.compile(
    rf"([-+]?)\s*(?:{_CURRENCY.pattern})\s*(?=[-+\d.\\(])"
)
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
    r"|\s*[A-Za-z]{2,}[.]?(?:\^\{\d\})?"
    r"(?:\s*(?:/|\s)\s*[A-Za-z]+(?:\^\{\d\})?)*)"
)
ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_FUNCTION = re.compile(r"(?:sin|cos|tan|log|ln|exp|sqrt|mod|pi|lim|max|min\()")


def split(text: str) -> tuple[str, bool, str]:
  r"""Splits a normalised answer into core, percent sign and canonical unit.

  Words count as a unit after a number or a formula; letters that may be
  variables (`5x`, `5 ab`) do not.
  """
  text = text.strip()
  unit = ""
  currency = _LEADING_CURRENCY.match(text)
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
    if "\\degree" in tail and ANGLE_FUNCTION.search(text):
      continue
    if _UNIT.fullmatch(tail) and _is_unit(tail):
      return text[:start].strip(), False, unit or canonical(tail)
  return text, False, unit


def _unit_starts(text: str) -> list[int]:
  """Indices after a digit or a closing bracket where a unit may begin."""
  return [
      match.end()
      for match in re.finditer(
          r"[\d})](?=\s*(?:\\text|\\degree|[A-Za-z]))", text
      )
  ] + [
      match.end() for match in re.finditer(r"\\[a-z]+(?=\s*\\text\{)", text)
  ]


def _is_unit(tail: str) -> bool:
  tail = tail.strip()
  if tail.startswith("\\"):
    inner = re.sub(r"\\text\{|[{}]", "", tail).strip().lower()
    first = inner.split()[0] if inner.split() else ""
    return first.rstrip("s") not in SCALES and first not in ("or", "and")
  words = re.findall(r"[A-Za-z]+", tail)
  if words[0].lower().rstrip("s") in SCALES or _FUNCTION.match(words[0]):
    return False
  if len(words[0]) == 1:
    return words[0] in "mgshLl"
  first = words[0].lower()
  return len(first) >= 4 or first in _SHORT_WORDS or first in _CANONICAL


def canonical(text: str) -> str:
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
  text = re.sub(
      r"\^\s*\d|\b(?:square|sq|squared|cubic|cu|cubed)\b|\.", "", text
  )
  words = [
      _CANONICAL.get(word, _CANONICAL.get(word.removesuffix("s"), word))
      for word in re.findall(r"[a-z$]+|/", text)
  ]
  return "".join(words) + (f"^{exponent}" if exponent else "")


def conflict(left: str, right: str) -> bool:
  """Says whether two units are both known and different."""
  if not left or not right or left == right:
    return False
  known = set(_KNOWN_UNITS)
  return all(
      all(part in known for part in re.split(r"\^\d|/", unit) if part)
      for unit in (left, right)
  )
