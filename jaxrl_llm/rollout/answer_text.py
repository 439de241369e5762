r"""One spelling for each way of writing an answer.

`normalise` maps LaTeX, Unicode and plain-text spellings of the same
mathematics to one LaTeX spelling (`\dfrac12`, `½` and `\frac{1}{2}` become
`\frac{1}{2}`). It changes how an answer is written, never what it says.
"""

import re
import unicodedata

_UNICODE = {
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "π": r"\pi ", "∞": r"\infty ",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
    "±": r"\pm ", "−": "-", "–": "-", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "∈": r"\in ", "∪": r"\cup ",
    "∩": r"\cap ", "∅": r"\emptyset ", "°": r"^\circ ", "θ": r"\theta ",
    "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "ℝ": r"\mathbb{R}",
    "⟨": r"\langle ", "⟩": r"\rangle ", "′": "'", "’": "'", "“": '"',
    "”": '"', "∗": "*",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_FUNCTIONS = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp"
)
_STYLES = (
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|mathcal|boldsymbol|bm|textbf"
    r"|textit|textrm|textsf|texttt|textnormal|text|mbox|emph|underline"
    r"|operatorname\*?)\s*(?=\{)"
)
_SIMPLE_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\(?:display|text|script)style(?![A-Za-z])", " "),
        (r"\\(?:no)?limits(?![A-Za-z])", ""),
        (r"\{\\(?:rm|bf|it)\s+([^{}]*)\}", r"\\text{\1}"),
        # A separator of thousands: 1,\!234, 1{,}234, 1\,234, 1 234.
        (r"(?<=\d)(?:,\\!|\{,\}|\\[,;:! ]|,\\,|\\ )\s*(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\(?:[,;: >]|quad(?![A-Za-z])|qquad(?![A-Za-z])"
         r"|thinspace(?![A-Za-z])|hspace\*?\{[^{}]*\})|~|\t|\n", " "),
        (r"\\(?:leqslant|leq)(?![A-Za-z])|<=|=<", r"\\le "),
        (r"\\(?:geqslant|geq)(?![A-Za-z])|>=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"), (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"), (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\lbrack(?![A-Za-z])", "["), (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\[lr]vert(?![A-Za-z])", "|"),
        (r"\\langle(?![A-Za-z])", "("), (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\^\s*\{\s*\\(?:circ|degree)\s*\}|\^\s*\\circ(?![A-Za-z])"
         r"|\\degree(?![A-Za-z])", r"\\degree "),
        (r"\+\s*/?\s*-|\\mp(?![A-Za-z])", r"\\pm "),
        (r"(?<![\\A-Za-z])(?:infinity|inf)(?![A-Za-z])", r"\\infty "),
        (r"(?<![\\A-Za-z])(?:pi)(?![A-Za-z])|(?<=\d)pi(?![A-Za-z])", r"\\pi "),
        (r"\\?%|(?<![\\A-Za-z])per\s?cent(?:age)?(?![A-Za-z])", r"\\%"),
        (r"\*\*", "^"),
        (r"\\dot\{(\d)\}", r"\\overline{\1}"),
        (r"\\(?:text)?color\s*\{[a-z]+\}", ""),
        (r"\\(?:dots|ldots|cdots)(?![A-Za-z])|…", "..."),
    )
)  # fmt: skip
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
# "Total:" or "approximately" before a number or a formula.
_TEXT_LABEL = re.compile(
    r"^\\text\{(?:[^{}]*[:=]|[^{}]*\bis"
    r"|(?i:\s*(?:approximately|about|exactly)))\s*\}\s*(?=[-+\d\\.$(A-Za-z])"
)
_CONJUNCTION = re.compile(
    r"\\text\{\s*,?\s*(?:and|or)\s*\}|,?\s+(?:and|or)\s+"
    r"|(?<=\d)\s*(?:and|or)\s+"
)
_THOUSANDS = re.compile(
    r"(?<![\d.,])(?<!\d, )\d{1,3}(?:,\d{3})+(?![\d])(?!,\d)"
)
_SPACED_THOUSANDS = re.compile(
    r"(?<![\d.,/ ])[1-9]\d{0,2}(?: \d{3})+(?![\d/,])"
)


def normalise(text: str) -> str:
  """Returns the one spelling of an answer; see the module."""
  text = _from_unicode(re.sub(r"^\*\*(.+)\*\*$", r"\1", text.strip()))
  text = re.sub(r"\\\\(?=[A-Za-z])(?!\\)", r"\\", text) if (
      r"\begin" not in text
  ) else text
  text = _without_math_marks(text)
  text = re.sub(_STYLES, r"\\text", text)
  for pattern, replacement in _SIMPLE_RULES:
    text = pattern.sub(replacement, text)
  for _ in range(2):  # One style may stand inside another.
    text = _TEXT.sub(_plain_text, text)
  text = _TEXT_LABEL.sub("", text)
  if r"\begin" not in text:
    text = text.replace("&", " ")
  text = _CONJUNCTION.sub(", ", text)
  text = _call_style(text)
  text = _braced_arguments(text)
  text = re.sub(r"([\^_])\s*(-?\d+|-?[A-Za-z])(?![{])", r"\1{\2}", text)
  text = re.sub(r"([\^_])\s*\(([^()]*)\)", r"\1{\2}", text)
  text = re.sub(r"(^|[(\[,;=])\s*\+\s*(?=[\w\\.])", r"\1", text)
  text = _without_thousands(text)
  text = re.sub(r"\s+", " ", text).strip()
  text = re.sub(r"^(?:\\approx|=|:|\\therefore)\s*", "", text)
  return re.sub(r"(?:[\s.,;:]|\\)+$", "", text).strip()


def compact(text: str) -> str:
  """Drops spaces that say nothing: all but those between two digits."""
  return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def split_top(text: str, separator: str) -> list[str]:
  r"""Splits at matches of a pattern that stand outside all brackets.

  Every kind of bracket nests, and closes every other, so that `[1, 2)` is one
  piece; `\begin … \end` nests too.
  """
  pattern = re.compile(
      rf"(?P<cut>{separator})|(?P<open>\\begin\b|\\\{{|[(\[{{])"
      r"|(?P<close>\\end\b|\\\}|[)\]}])|\\."
  )
  pieces, depth, start = [], 0, 0
  for match in pattern.finditer(text):
    if match.lastgroup == "open":
      depth += 1
    elif match.lastgroup == "close":
      depth -= 1
    elif match.lastgroup and match["cut"] is not None and depth == 0:
      pieces.append(text[start:match.start()].strip())
      start = match.end()
  return pieces + [text[start:].strip()]


def closing(text: str, start: int) -> int:
  """Returns the index of the bracket that closes the one at `start`, or -1."""
  depth = 0
  for match in re.finditer(r"\\[\\]|[({\[]|[)}\]]", text[start:]):
    if match[0] in ("(", "{", "["):
      depth += 1
    elif match[0] in (")", "}", "]"):
      depth -= 1
      if depth == 0:
        return start + match.start()
  return -1


def _from_unicode(text: str) -> str:
  text = re.sub(r"√\s*\(", r"\\sqrt(", text)
  text = re.sub(r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}", text)
  text = re.sub(
      "[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+",
      lambda match: "^{" + match[0].translate(_SUPERSCRIPTS) + "}",
      text,
  )
  text = re.sub(
      "[₀-₉]+",
      lambda match: "_{" + match[0].translate(_SUBSCRIPTS) + "}",
      text,
  )
  for symbol, spelling in _UNICODE.items():
    # A digit before a vulgar fraction makes a mixed number.
    text = text.replace(symbol, spelling)
  return unicodedata.normalize("NFKC", text)


def _without_math_marks(text: str) -> str:
  r"""Removes `$…$`, `\(…\)`, `\[…\]`; spells a currency sign `\$`."""
  text = re.sub(r"(?<!\\)\\[()\[\]]", " ", text)
  marks = re.findall(r"(?<!\\)\$", text)
  if len(marks) == 1:
    return re.sub(r"(?<!\\)\$", r"\\$", text)
  return re.sub(r"(?<!\\)\$", " ", text)


def _plain_text(match: re.Match) -> str:
  r"""Unwraps `\text{}` around symbols; keeps it around words."""
  content = re.sub(r"\s+", " ", match[1])
  word = content.strip()
  if re.fullmatch(_FUNCTIONS, word):
    return rf"\{word} "
  if re.fullmatch(r"[A-Za-z]", word) and content == word:
    return word
  if re.search(r"[A-Za-z]", word) and not re.search(r"[\d()=+\\^]", word):
    return rf"\text{{{content}}}"
  return content


def _call_style(text: str) -> str:
  r"""Rewrites `sqrt(2)` as `\sqrt{2}` and `sin(x)` as `\sin(x)`."""
  text = re.sub(r"(?<![\\A-Za-z])sqrt", r"\\sqrt", text)
  text = re.sub(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?=[\s(\d_])", r"\\\1", text)
  position = 0
  while (position := text.find(r"\sqrt(", position)) >= 0:
    start = position + 5
    end = closing(text, start)
    if end < 0:
      break
    text = f"{text[:start]}{{{text[start + 1:end]}}}{text[end + 1:]}"
    position = start
  return text


def _braced_arguments(text: str) -> str:
  r"""Gives the arguments of `\frac`, `\binom` and `\sqrt` their braces."""
  out, position = [], 0
  for match in re.finditer(r"\\(frac|binom|sqrt)(?![A-Za-z])", text):
    if match.start() < position:
      continue
    out.append(text[position:match.end()])
    position = match.end()
    if match[1] == "sqrt":
      root = re.match(r"\s*\[[^\[\]]*\]", text[position:])
      if root:
        out.append(root[0].strip())
        position += root.end()
    for _ in range(1 if match[1] == "sqrt" else 2):
      argument, position = _argument(text, position)
      if argument is None:
        break
      out.append(f"{{{_braced_arguments(argument)}}}")
  out.append(text[position:])
  return "".join(out)


def _argument(text: str, position: int) -> tuple[str | None, int]:
  """Reads one TeX argument: a group, a command or a character."""
  while position < len(text) and text[position] == " ":
    position += 1
  if position >= len(text) or text[position] in "}])":
    return None, position
  if text[position] == "{":
    end = closing(text, position)
    if end < 0:
      return None, position
    return text[position + 1:end].strip(), end + 1
  command = re.match(r"\\[A-Za-z]+(?:\{[^{}]*\})*", text[position:])
  size = command.end() if command else 1
  return text[position:position + size], position + size


def _without_thousands(text: str) -> str:
  """Removes separators of thousands, but not those of a list or a tuple.

  Inside brackets a comma separates, unless another one there is followed by a
  space: then `1,234` is a number.
  """
  def replace(match: re.Match) -> str:
    before = text[:match.start()]
    depth = sum(map(before.count, "([")) - sum(map(before.count, ")]"))
    depth += before.count(r"\{") - before.count(r"\}")
    if depth > 0 and ", " not in text:
      return match[0]
    return match[0].replace(",", "")

  text = _THOUSANDS.sub(replace, text)
  return _SPACED_THOUSANDS.sub(lambda m: m[0].replace(" ", ""), text)
