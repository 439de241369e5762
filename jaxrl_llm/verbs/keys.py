"""Keys of the configuration: their comments, and the nearest valid one.

The one source is configs/base.py. It is read as text, so that help costs no
import of it, and a comment cannot drift from its key.
"""

import ast
from collections.abc import Iterable, Mapping
import dataclasses
import difflib
import pathlib
import tokenize
from typing import Any

BASE_FILE = pathlib.Path(__file__).parents[2] / "configs" / "base.py"


@dataclasses.dataclass(frozen=True)
class Key:
  """One key: dotted name, default as written, and the comment above it."""

  name: str
  default: str
  comment: str


def read(path: pathlib.Path = BASE_FILE) -> list[Key]:
  """Lists the keys of a base file in order.

  A comment block belongs to the assignment right below it. A key set to an
  empty ConfigDict is a section and no key.
  """
  with tokenize.open(path) as file:
    source = file.read()
  lines = source.splitlines()
  return [
      Key(name, default, _comment_above(lines, line))
      for name, default, line in _assignments(ast.parse(source))
  ]


def _assignments(tree: ast.Module) -> Iterable[tuple[str, str, int]]:
  """Yields (dotted name, default, line) of `config.… = …` statements."""
  for node in ast.walk(tree):
    if not isinstance(node, ast.Assign):
      continue
    root, _, name = ast.unparse(node.targets[0]).partition(".")
    if root == "config" and name and not _is_section(node.value):
      yield name, _default(node.value), node.lineno


def _is_section(value: ast.expr) -> bool:
  return isinstance(value, ast.Call) and "ConfigDict" in ast.unparse(value.func)


def _default(value: ast.expr) -> str:
  """Renders a default; a placeholder shows as its unset type."""
  if isinstance(value, ast.Call):
    return "unset " + ", ".join(ast.unparse(item) for item in value.args)
  return ast.unparse(value)


def _comment_above(lines: list[str], line: int) -> str:
  """Joins the comment lines directly above a one-based line."""
  words: list[str] = []
  for text in reversed(lines[: line - 1]):
    text = text.strip()
    if not text.startswith("#"):
      break
    words.insert(0, text.lstrip("# "))
  return " ".join(words)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Turns nested sections into {"train.epochs": 2, …}."""
  flat: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f"{prefix}{name}.")
    else:
      flat[prefix + name] = value
  return flat


def within(name: str, sections: Iterable[str]) -> bool:
  """True where a key is one of `sections` or lies in one of them."""
  return any(
      name == section or name.startswith(section + ".")
      for section in sections
  )


def nearest(name: str, valid: Iterable[str]) -> str:
  """Finds the valid key most like `name`, by whole name or by last part."""
  valid = list(valid)
  last_parts = {key.rpartition(".")[2]: key for key in valid}
  same_part = last_parts.get(name.rpartition(".")[2])
  close = difflib.get_close_matches(name, valid, n=1, cutoff=0.7)
  if same_part and not close:
    return same_part
  close = close or difflib.get_close_matches(name, valid, n=1, cutoff=0.0)
  return close[0]


def check(names: Iterable[str], valid: Iterable[str], where: str) -> None:
  """Refuses a name that is not a key.

  Raises:
    ValueError: naming the key, where it was found and the nearest valid key.
  """
  valid = list(valid)
  for name in names:
    if name not in valid:
      raise ValueError(
          f"{where}: there is no key {name!r}; the nearest valid key is"
          f" {nearest(name, valid)!r}."
      )


def require(names: Iterable[str], valid: Iterable[str], where: str) -> None:
  """Refuses names that lack a key.

  Raises:
    ValueError: naming the first missing key.
  """
  missing = sorted(set(valid) - set(names))
  if missing:
    raise ValueError(
        f"{where}: the key {missing[0]!r} is missing; start from"
        " base.get_config() of configs/base.py."
    )
