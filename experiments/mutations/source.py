"""Places in a source file: nodes in order, their bytes, names in scope."""

import ast
import dataclasses
from collections.abc import Iterator

Edit = tuple[int, int, str]
_FUNCTIONS = (ast.FunctionDef, ast.Lambda)


@dataclasses.dataclass(frozen=True)
class Mutant:
  """One change of one file.

  Attributes:
    operator: name of the operator that made it.
    path: the file, relative to the root of the repository.
    line: from 1.
    column: from 1, in bytes.
    before: source that is replaced.
    after: what replaces it.
    edits: (start, end, text) by byte offset, ascending, disjoint.
  """

  operator: str
  path: str
  line: int
  column: int
  before: str
  after: str
  edits: tuple[Edit, ...]

  @property
  def name(self) -> str:
    return (
        f"{self.path}:{self.line}:{self.column} {self.operator}: "
        f"{self.before} → {self.after}"
    )

  def apply(self, source: bytes) -> bytes:
    """The file with the change made."""
    for start, end, text in reversed(self.edits):
      source = source[:start] + text.encode() + source[end:]
    return source


class Source:
  """A parsed file that knows where its nodes lie."""

  def __init__(self, path: str, content: bytes):
    self.path = path
    self.content = content
    self.tree = ast.parse(content)
    self._lines = [0]
    for line in content.splitlines(keepends=True):
      self._lines.append(self._lines[-1] + len(line))

  def span(self, node: ast.AST) -> tuple[int, int]:
    """Byte offsets of a node."""
    return (
        self._lines[node.lineno - 1] + node.col_offset,
        self._lines[node.end_lineno - 1] + node.end_col_offset,
    )

  def text(self, node: ast.AST) -> str:
    return self.slice(*self.span(node))

  def slice(self, start: int, end: int) -> str:
    return self.content[start:end].decode()

  def mutant(self, operator: str, node: ast.AST, edits: list[Edit]) -> Mutant:
    """The mutant of these edits, all of them inside `node`."""
    start, end = self.span(node)
    moved = tuple((a - start, b - start, text) for a, b, text in edits)
    before = self.slice(start, end)
    bare = Mutant(operator, self.path, 0, 0, "", "", moved)
    after = bare.apply(before.encode()).decode()
    squeeze = lambda text: " ".join(text.split())
    return Mutant(
        operator, self.path, node.lineno, node.col_offset + 1,
        squeeze(before), squeeze(after), tuple(edits),
    )


class Scope:
  """Names that the enclosing functions have bound before a line."""

  def __init__(self, functions: tuple[ast.AST, ...] = ()):
    self._functions = functions

  def inside(self, function: ast.AST) -> "Scope":
    return Scope((*self._functions, function))

  def has(self, name: str, line: int) -> bool:
    """Whether a parameter or an earlier assignment binds the name."""
    return any(
        bound < line
        for function in self._functions
        for bound in _bindings(function, name)
    )


def _bindings(function: ast.AST, name: str) -> Iterator[int]:
  """Lines after which the function knows the name; 0 for parameters."""
  arguments = function.args
  for argument in (
      *arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs
  ):
    if argument.arg == name:
      yield 0
  for node in ast.walk(function):
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      if node.id == name:
        yield node.lineno


def nodes(
    node: ast.AST, scope: Scope | None = None
) -> Iterator[tuple[ast.AST, Scope]]:
  """Nodes under `node` with their scope; no annotations, no f-strings.

  Python 3.11 has no positions inside f-strings.
  """
  scope = scope or Scope()
  yield node, scope
  if isinstance(node, _FUNCTIONS):
    scope = scope.inside(node)
  for field, value in ast.iter_fields(node):
    if field in ("annotation", "returns"):
      continue
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
        yield from nodes(child, scope)
