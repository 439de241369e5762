"""Mutation operators: each finds its places in a source file.

An operator is a generator (source, node, scope) → lists of edits inside the
node, one list per mutant.
"""

import ast
import re
from collections.abc import Iterator

from experiments.mutations import source as source_lib

Edit = source_lib.Edit
Source = source_lib.Source
Scope = source_lib.Scope
Edits = Iterator[list[Edit]]

# Log-probs by what holds them; any of a row may be mistaken for another.
_FIELDS = {
    "terms": (
        "logprobs", "behavior_logprobs", "proximal_logprobs",
        "reference_logprobs",
    ),
    "tokens": ("logprobs", "anchor_logprobs"),
    "self": ("logprobs", "anchor_logprobs"),
}
_TOP = ("topk_logprobs", "topk_anchor_logprobs")
_NAMES = (
    "logprobs", "behavior", "proximal", "anchor", "live", "reference",
    "recorded", "top_anchor", "top_live",
)
_POLICIES = {"behavior": "proximal", "proximal": "behavior"}
_EXTREMA = {
    "minimum": "maximum", "min": "max", "segment_min": "segment_max",
    "maximum": "minimum", "max": "min", "segment_max": "segment_min",
}
_SIDES = {"low": "high", "high": "low", "min": "max", "max": "min"}
_STRICTNESS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_CLAMPS = ("clamp", "cap", "clip", "_at_least_one", "minimum", "maximum")
_SUMS = ("cumulative_log_ratios", "cumulative_log_ratios_parallel")
_LASTS = ("_last", "last_values", "last_values_parallel")


def _called(node: ast.AST) -> str:
  """Last word of what a call calls; empty for other nodes."""
  if not isinstance(node, ast.Call):
    return ""
  return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _loaded(node: ast.AST) -> bool:
  return isinstance(getattr(node, "ctx", None), ast.Load)


def _attribute(source: Source, node: ast.Attribute, word: str) -> Edit:
  """Replaces what follows the last dot."""
  end = source.span(node)[1]
  return end - len(node.attr.encode()), end, word


def _argument(source: Source, node: ast.Call, index: int = 0) -> list[Edit]:
  """Replaces a call by one of its arguments."""
  return [(*source.span(node), f"({source.text(node.args[index])})")]


def _keyword(source: Source, node: ast.keyword, word: str) -> Edit:
  start = source.span(node)[0]
  return start, start + len(node.arg.encode()), word


def policy(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Takes the log-probs of another policy."""
  if isinstance(node, ast.Attribute) and _loaded(node):
    owner = source.text(node.value).split(".")[-1]
    for row in (_FIELDS.get(owner, ()), _TOP):
      for word in row if node.attr in row else ():
        if word != node.attr:
          yield [_attribute(source, node, word)]
  if isinstance(node, ast.Name) and _loaded(node) and node.id in _NAMES:
    for word in _NAMES:
      if word != node.id and scope.has(word, node.lineno):
        yield [(*source.span(node), word)]
  if isinstance(node, ast.Constant) and node.value in _POLICIES:
    yield [(*source.span(node), f'"{_POLICIES[node.value]}"')]
  if isinstance(node, ast.Call):
    yield from _policy_keywords(source, node)


def _policy_keywords(source: Source, node: ast.Call) -> Edits:
  words = [k for k in node.keywords if k.arg and k.arg.endswith("logprobs")]
  if len(words) == 2:
    first, second = words
    yield [
        _keyword(source, first, second.arg), _keyword(source, second, first.arg)
    ]
  elif len(words) == 1:
    for word in _FIELDS["terms"]:
      if word != words[0].arg:
        yield [_keyword(source, words[0], word)]


def stop_gradient(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Lets a gradient through."""
  del scope
  if _called(node) == "stop_gradient":
    yield _argument(source, node)
  if isinstance(node, ast.Attribute) and node.attr == "detached_logprobs":
    yield [_attribute(source, node, "logprobs")]


def prefix(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Sums the whole sequence for the prefix, and the reverse."""
  del scope
  swaps = {"running_sums": "sequence_sums", "sequence_sums": "running_sums"}
  word = _called(node)
  if word in swaps:
    start, end = source.span(node.func)
    yield [(start, end, source.text(node.func).replace(word, swaps[word]))]
  if word in _LASTS:
    yield _argument(source, node)
  if word == "_running":
    starts = source.text(node.args[2])
    yield [(*source.span(node), f"_last({source.text(node)}, {starts})")]
  if word == "cumsum":
    total = source.text(node).replace("cumsum(", "sum(", 1)
    total = total[:-1] + ", keepdims=True)"
    yield [(*source.span(node), f"({total} + 0 * {source.text(node)})")]
  name = getattr(node, "attr", getattr(node, "id", ""))
  if name in _SUMS and _loaded(node):
    kernel = source.text(node)
    last = kernel.replace("cumulative_log_ratios", "last_values")
    yield [(*source.span(node), f"(lambda *x: {last}({kernel}(*x), x[2]))")]


def strictness(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Opens a closed bound, closes an open one."""
  del scope
  if not isinstance(node, ast.Compare):
    return
  operands = [node.left, *node.comparators]
  for left, right, kind in zip(operands, operands[1:], node.ops):
    if type(kind) in _STRICTNESS:
      start, end = source.span(left)[1], source.span(right)[0]
      text = source.slice(start, end)
      new = re.sub("[<>]=?", _STRICTNESS[type(kind)], text, count=1)
      yield [(start, end, new)]


def sign(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Swaps + and −, drops a leading −; 1 + ε ↔ 1 − ε above all."""
  del scope
  if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
    if _numeric(node):
      old, new = "+-" if isinstance(node.op, ast.Add) else "-+"
      start, end = source.span(node.left)[1], source.span(node.right)[0]
      yield [(start, end, source.slice(start, end).replace(old, new, 1))]
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    if not isinstance(node.operand, ast.Constant) or (
        node.operand.value == 1.0 and isinstance(node.operand.value, float)
    ):
      start = source.span(node)[0]
      yield [(start, source.span(node.operand)[0], "")]


def _numeric(node: ast.AST) -> bool:
  """Whether a sum has no string and no list among its operands."""
  if isinstance(node, ast.BinOp):
    return _numeric(node.left) and _numeric(node.right)
  if isinstance(node, ast.Constant):
    return not isinstance(node.value, str)
  return not isinstance(node, (ast.JoinedStr, ast.List, ast.ListComp))


def low_high(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Swaps the lower and the upper bound."""
  if isinstance(node, ast.Attribute) and _loaded(node):
    other = _other_side(node.attr)
    known = re.search(rf"\b{other}\b", source.content.decode())
    if other and known and node.attr not in _EXTREMA:
      yield [_attribute(source, node, other)]
  if isinstance(node, ast.Name) and _loaded(node) and node.id in _SIDES:
    if scope.has(_SIDES[node.id], node.lineno):
      yield [(*source.span(node), _SIDES[node.id])]
  if isinstance(node, ast.Call):
    pairs = {k.arg: k.value for k in node.keywords if k.arg}
    for word, value in pairs.items():
      other = _other_side(word)
      if other in pairs and ("low" in word or "min" in word):
        yield _swap(source, value, pairs[other])
    if _called(node) in ("clamp", "clip") and len(node.args) == 3:
      yield _swap(source, node.args[1], node.args[2])


def _other_side(word: str) -> str:
  """The word with low and high, or min and max, swapped; empty if none."""
  pieces = word.split("_")
  swapped = [_SIDES.get(piece, piece) for piece in pieces]
  return "" if swapped == pieces or word in _EXTREMA else "_".join(swapped)


def _swap(source: Source, first: ast.AST, second: ast.AST) -> list[Edit]:
  return [
      (*source.span(first), source.text(second)),
      (*source.span(second), source.text(first)),
  ]


def extremum(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Swaps minimum and maximum."""
  del scope
  word = _called(node)
  if word in _EXTREMA:
    end = source.span(node.func)[1]
    yield [(end - len(word), end, _EXTREMA[word])]


def mask(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Lets in what a mask keeps out, or a reset forgets."""
  del scope
  word = _called(node)
  if word == "fill":
    yield _argument(source, node)
  if word == "where" and len(node.args) == 3:
    for zero, other in ((2, 1), (1, 2)):
      if getattr(node.args[zero], "value", None) == 0:
        yield _argument(source, node, other)
  for keyword in getattr(node, "keywords", ()):
    if keyword.arg == "where" and word == "sum":
      before = [n for n in (*node.args, *node.keywords) if n is not keyword]
      last = max(
          source.span(n)[1]
          for n in before if source.span(n)[1] < source.span(keyword)[0]
      )
      yield [(last, source.span(keyword)[1], "")]
  if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
    for gone, left in ((node.left, node.right), (node.right, node.left)):
      if re.fullmatch(r"(\w+\.)*(mask|valid)(\[.*\])?", source.text(gone)):
        yield [(*source.span(node), f"({source.text(left)})")]


def clamp(source: Source, node: ast.AST, scope: Scope) -> Edits:
  """Drops a clamp, a cap or a guard."""
  del scope
  if _called(node) in _CLAMPS and node.args:
    yield _argument(source, node)


OPERATORS = {
    operator.__name__: operator
    for operator in (
        policy, stop_gradient, prefix, strictness, sign, low_high, extremum,
        mask, clamp,
    )
}


def mutants(path: str, content: bytes) -> list[source_lib.Mutant]:
  """All mutants of a file, in the order of the source.

  Args:
    path: of the file, relative to the root of the repository.
    content: its bytes.
  """
  source = Source(path, content)
  found = {}
  for node, scope in source_lib.nodes(source.tree):
    for name, operator in OPERATORS.items():
      for edits in operator(source, node, scope):
        mutant = source.mutant(name, node, edits)
        if mutant.apply(content) != content:  # Equal bounds swap in vain.
          found.setdefault(mutant.edits, mutant)
  return list(found.values())
