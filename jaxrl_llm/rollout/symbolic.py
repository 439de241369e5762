r"""Equality of formulas: math-verify's parser and verifier behind guards.

math-verify reads the LaTeX. Two scalar formulas are then compared at fixed
points to 40 digits, which decides almost every pair quickly and soundly; only
what stays undecided, and what is no scalar, reaches math-verify's own
verification. Its time-outs are off (they need the main thread): callers run
this module in a process that can be killed.
"""

import functools
import logging
import re

import math_verify
import sympy
from math_verify import grader

from jaxrl_llm.rollout import answer_units

# A formula beyond these is refused before anything is computed.
_LONGEST_LITERAL = 200
_LARGEST_EXPONENT = 4000
_LARGEST_FACTORIAL = 500

# It warns that its time-outs are off, which is meant here.
for _name in ("math_verify.parser", "math_verify.grader"):
  logging.getLogger(_name).setLevel(logging.ERROR)

_POINTS = ("0.7310585", "1.2570119", "2.0893351", "0.3183099", "1.6487213")
_DIGITS = 40


class Refusal(ValueError):
  """The formula cannot be read, or is too large to be evaluated."""


def equal(gold: str, answer: str) -> bool:
  """Compares two normalised formulas.

  Raises:
    Refusal: when one of them cannot be read or is too large.
  """
  left, right = parse(gold), parse(answer)
  if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
    verdict = _compare_at_points(left, right)
    if verdict is not None:
      return verdict
  return math_verify.verify(
      left, right, timeout_seconds=None, raise_on_error=True
  )


def proportional(gold: tuple[str, str], answer: tuple[str, str]) -> bool:
  """Says whether two equations (left side, right side) have one solution set.

  That is taken to be so when left minus right differ by a constant factor.
  """
  first = parse(gold[0]) - parse(gold[1])
  second = parse(answer[0]) - parse(answer[1])
  if first.free_symbols != second.free_symbols or not first.free_symbols:
    return False
  ratio = sympy.cancel(sympy.together(first / second))
  return not ratio.free_symbols and ratio.is_finite and ratio != 0


def rounds_to(formula: str, decimal: str, places: int) -> bool:
  """Says whether a decimal rounds or cuts off a constant formula."""
  value = parse(formula)
  if not isinstance(value, sympy.Expr) or value.free_symbols:
    return False
  digits = sympy.N(value - sympy.Rational(decimal), places + 20)
  return bool(digits.is_real and abs(digits) < sympy.Rational(10) ** -places)


@functools.lru_cache(maxsize=4096)
def parse(formula: str) -> sympy.Basic:
  """Reads one normalised formula; raises Refusal when it cannot."""
  _guard(formula)
  formula = _for_parser(formula)
  found = math_verify.parse(
      f"${formula}$",
      extraction_config=[math_verify.LatexExtractionConfig()],
      fallback_mode="no_fallback",
      parsing_timeout=None,
  )
  if not found or isinstance(found[0], str):
    raise Refusal(f"{formula[:80]!r} is no formula that math-verify reads.")
  return _with_imaginary_unit(found[0], formula)


def _with_imaginary_unit(value: sympy.Basic, formula: str) -> sympy.Basic:
  """Reads `i` as the imaginary unit, unless it is an index (`i=1`)."""
  if re.search(r"(?<![A-Za-z\\])i\s*=", formula):
    return value
  units = {s: sympy.I for s in value.free_symbols if str(s) == "i"}
  return value.subs(units) if units else value


def _for_parser(formula: str) -> str:
  """Spells out what the parser reads differently: products, decimals."""
  if answer_units.ANGLE_FUNCTION.search(formula):
    formula = re.sub(
        r"\(?(\d+(?:\.\d+)?)\s*\\degree\)?", r"(\\frac{\1\\pi}{180})", formula
    )
  formula = re.sub(
      r"(?<![\d.}])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}",
      lambda m: (
          rf"({m[1]}+\frac{{{m[2]}}}{{{m[3]}}})"
          if int(m[2]) < int(m[3])
          else rf"{m[1]}\cdot\frac{{{m[2]}}}{{{m[3]}}}"
      ),
      formula,
  )
  formula = re.sub(
      r"(?<![\d.])(\d*)\.(\d+)(?![\d.])",
      lambda m: rf"\frac{{{int(m[1] + m[2])}}}{{1{'0' * len(m[2])}}}",
      formula,
  )
  formula = re.sub(r"(?<=\})(?=\\frac|\\sqrt)", r"\\cdot ", formula)
  formula = re.sub(r"(?<![A-Za-z\\])([A-Za-z])\s*(?=\()", r"\1", formula)
  return formula.replace("*", r"\cdot ").replace(r"\degree", "")


def _guard(formula: str) -> None:
  """Refuses what would take for ever: towers and huge numbers."""
  for literal in re.findall(r"\d+", formula):
    if len(literal) > _LONGEST_LITERAL:
      raise Refusal(f"a number of {len(literal)} digits.")
  for exponent in re.findall(r"\^\s*(?:\{\s*[-+]?\s*)?(\d+)", formula):
    if int(exponent) > _LARGEST_EXPONENT:
      raise Refusal(f"an exponent of {exponent}.")
  for argument in re.findall(r"(\d+)\s*\)*\s*!", formula):
    if int(argument) > _LARGEST_FACTORIAL:
      raise Refusal(f"a factorial of {argument}.")
  for argument in re.findall(r"\\binom\{(\d+)\}", formula):
    if int(argument) > _LARGEST_EXPONENT:
      raise Refusal(f"a binomial coefficient of {argument}.")
  if re.search(r"!\s*\)*\s*!", formula) or _has_tower(formula):
    raise Refusal("powers or factorials stacked on each other.")


def _has_tower(formula: str) -> bool:
  """Finds exponents that are powers themselves, or powers of large powers.

  `x^{2^{3}}` passes; `9^{9^{9}}`, `10^{10^{10}}`, `e^{e^{e^{9}}}` and
  `(9^{999})^{999}` do not.
  """
  spelt = re.sub(r"\\pi|(?<![\\A-Za-z])e(?![A-Za-z])", " 3 ", formula)
  for match in re.finditer(r"\^\s*\{", spelt):
    depth, end = 1, match.end()
    while end < len(spelt) and depth:
      depth += (spelt[end] == "{") - (spelt[end] == "}")
      end += 1
    inner = spelt[match.end():end - 1]
    chain = re.match(r"(?:\s*\^\s*\{[^{}]*\})+", spelt[end:])
    inner += chain[0] if chain else ""
    numbers = [int(number) for number in re.findall(r"\d+", inner)]
    size = 1
    for number in reversed(numbers):
      if "^" in inner or "!" in inner:
        size = max(number, 2) ** size
      else:
        size *= max(number, 1)
      if size > _LARGEST_EXPONENT:
        return True
  powers = [int(n) for n in re.findall(r"\^\{\s*(\d+)\s*\}", formula)]
  outer = [int(n) for n in re.findall(r"[)}]\s*\^\{\s*(\d+)\s*\}", formula)]
  return bool(outer) and max(outer) * max(powers) > 10 * _LARGEST_EXPONENT


def _compare_at_points(left: sympy.Expr, right: sympy.Expr) -> bool | None:
  """Compares two scalars numerically at fixed points.

  At points with negative coordinates only real values count: roots and
  logarithms may take another branch there.

  Returns:
    False when they differ at a point, True when they agree at all of at least
    three, None when too few points have a finite value.
  """
  difference = left - right
  if difference.has(sympy.nan, sympy.zoo):
    return False
  symbols = sorted(left.free_symbols | right.free_symbols, key=str)
  agreed = 0
  for shift in range(2 * len(_POINTS) if symbols else 1):
    sign = 1 if shift < len(_POINTS) else -1
    values = {
        symbol: sign * (
            sympy.Rational(_POINTS[(shift + i) % len(_POINTS)]) + i // 5
        )
        for i, symbol in enumerate(symbols)
    }
    sides = [
        sympy.N(grader.safe_sympy_doit(side.subs(values)), _DIGITS)
        for side in (left, right)
    ]
    if not all(side.is_number and side.is_finite for side in sides):
      continue
    if sign < 0 and not all(side.is_real for side in sides):
      continue
    scale = max(1, abs(sides[0]))
    if abs(sides[0] - sides[1]) > scale * sympy.Rational(10) ** (10 - _DIGITS):
      return False
    agreed += 1
  return True if agreed >= (3 if symbols else 1) else None
