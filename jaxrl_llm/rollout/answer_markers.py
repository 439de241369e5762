r"""Strong markers of a final answer: boxes, tags and hashes, in one pass each.

`\boxed{}`, `\fbox{}`, `<answer>` and `####` mark an answer beyond doubt. A box
may nest and hold any braces; a final box or tag that never closes marks none.
"""

import re

Span = tuple[int, int, str]

_BOX_OR_BRACE = re.compile(
    r"\\+(?:boxed|fbox|framebox)(?![A-Za-z])\s*\{|\\[{}\\]|[{}]"
)
_BARE_BOX = re.compile(
    r"\\(?:boxed|fbox|framebox)(?![A-Za-z])(?!\s*\{)\s*([^\s$,;]*)"
)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_HASHES = re.compile(r"####[ \t]*(?:answer\b[ \t]*:?)?[ \t]*", re.IGNORECASE)
_WIDEST_CONNECTIVE = 40
_CONNECTIVE = re.compile(
    r"[\s$]*(?:\\[()\[\]])?"
    r"(?:,|;|,?\s*(?:and|or)|\\text\s*\{\s*(?:and|or)\s*\})"
    r"[\s$]*(?:\\[()\[\]])?[\s$]*(?:[A-Za-z]\s*=\s*)?"
)


def last(text: str) -> tuple[Span | None, bool]:
  """Returns (start, end, content) of the last strong marker, and closedness.

  The second value is False when a box or tag that comes later never closes.
  """
  boxes, open_box = _boxes(text)
  joined = _joined(text, boxes)
  found = [joined] if joined else []
  tags, open_tag = _tags(text)
  found += tags[-1:]
  hashes = list(_HASHES.finditer(text))
  if hashes:
    match = hashes[-1]
    line = text[match.end():].partition("\n")[0]
    found.append((match.start(), match.end() + len(line), line))
  latest = max(found, key=lambda span: span[1], default=None)
  begin = latest[0] if latest else -1
  unclosed = [start for start in (open_box, open_tag) if start is not None]
  return latest, not any(start > begin for start in unclosed)


def _boxes(text: str) -> tuple[list[Span], int | None]:
  """Lists outermost complete boxes; and where a final open one starts."""
  spans, stack, last_start, last_closed = [], [], -1, True
  for match in _BOX_OR_BRACE.finditer(text):
    token = match[0]
    if token == "}":
      if stack:
        start, content = stack.pop()
        if content is not None:
          while spans and spans[-1][0] > start:
            spans.pop()
          spans.append((start, match.end(), text[content:match.start()]))
          last_closed = last_closed or start == last_start
    elif token == "{":
      stack.append((match.start(), None))
    elif token[-1] == "{" and len(token) > 2:
      stack.append((match.start(), match.end()))
      last_start, last_closed = match.start(), False
  for match in _BARE_BOX.finditer(text):
    content = match[1].rstrip(".")
    if match.start() > last_start and content:
      spans.append((match.start(), match.end(), content))
      last_start, last_closed = match.start(), True
  return sorted(spans), None if last_closed else last_start


def _joined(text: str, boxes: list[Span]) -> Span | None:
  """Joins boxes that only "and", "or" or a comma separates into one list."""
  if not boxes:
    return None
  start, end, content = boxes[-1]
  for previous in reversed(boxes[:-1]):
    near = start - previous[1] <= _WIDEST_CONNECTIVE
    if not near or not _CONNECTIVE.fullmatch(text, previous[1], start):
      break
    if previous[2].strip() != content.strip():
      content = f"{previous[2]}, {content}"
    start = previous[0]
  return start, end, content


def _tags(text: str) -> tuple[list[Span], int | None]:
  """Lists complete tags; and where one that never closes starts."""
  spans, opened = [], None
  for match in _TAG.finditer(text):
    if not match[1]:
      opened = match
    elif opened is not None:
      content = text[opened.end():match.start()]
      spans.append((opened.start(), match.end(), content))
      opened = None
  return spans, None if opened is None else opened.start()
