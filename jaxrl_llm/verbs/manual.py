"""Help texts, made from the verbs' own files and the comments of base.py.

Nothing of a verb is imported: help must come at once.
"""

import ast
import pathlib
import textwrap
from typing import Any

from jaxrl_llm.verbs import keys

VERBS = (
    "run",
    "generate",
    "train",
    "evaluate",
    "score",
    "replay",
    "staleness",
    "report",
    "verify",
    "import-rollouts",
    "export-rollouts",
    "export",
    "describe",
    "compile",
)
WIDTH = 79
FOLDER = pathlib.Path(__file__).parent


def module(verb: str) -> str:
  """Names the file of a verb."""
  return verb.replace("-", "_")


def overview() -> str:
  """Lists the verbs with their first lines."""
  lines = [
      "usage: python -m jaxrl_llm VERB --config=FILE [--config.key=value]"
      " [--workdir=DIR]",
      "",
      "Verbs (python -m jaxrl_llm VERB --help tells more):",
  ]
  lines += [f"  {verb:<17}{summary(verb)}" for verb in VERBS]
  return "\n".join(lines)


def markdown_rows() -> list[str]:
  """Returns the verbs as the table of README.md."""
  rows = ["| verb | what it does |", "|---|---|"]
  return rows + [f"| `{verb}` | {summary(verb)} |" for verb in VERBS]


def summary(verb: str) -> str:
  """Returns the first line of a verb's file."""
  return ast.get_docstring(_parse(verb)).splitlines()[0]


def verb_help(verb: str) -> str:
  """Says what a verb does and lists the keys that it reads."""
  tree = _parse(verb)
  lines = [
      f"usage: python -m jaxrl_llm {verb} --config=FILE"
      " [--config.key=value …] --workdir=DIR",
      "",
      ast.get_docstring(tree),
      "",
      "Flags:",
      *_entry("--config", "FILE", "One of configs/, or your own."),
      *_entry("--workdir", "DIR", "Where everything is written and resumed."),
      *_short(verb),
      *_entry("--debug", "", "Show the traceback of a user error."),
      "",
      "Keys, with their defaults in configs/base.py:",
  ]
  chosen = sections(verb)
  for key in keys.read():
    if keys.within(key.name, chosen):
      lines += _entry(f"--config.{key.name}", key.default, key.comment)
  return "\n".join(lines)


def sections(verb: str) -> tuple[str, ...]:
  """Returns SECTIONS of a verb's file: the sections and keys that it reads."""
  found = _constant(verb, "SECTIONS")
  if found is None:
    raise ValueError(
        f"{module(verb)}.py: expected a module constant SECTIONS."
    )
  return found


def short_flags(verb: str) -> dict[str, str]:
  """Returns SHORT_FLAGS of a verb's file: flags that stand for a key."""
  return _constant(verb, "SHORT_FLAGS") or {}


def _short(verb: str) -> list[str]:
  """Formats the flags that stand for a key."""
  return [
      line
      for flag, key in short_flags(verb).items()
      for line in _entry(f"--{flag}", "VALUE", f"Short for --config.{key}.")
  ]


def _constant(verb: str, name: str) -> Any:
  """Returns a literal constant of a verb's file; None where it has none."""
  for node in _parse(verb).body:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets) == name:
      return ast.literal_eval(node.value)
  return None


def _parse(verb: str) -> ast.Module:
  path = FOLDER / f"{module(verb)}.py"
  return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _entry(flag: str, value: str, text: str) -> list[str]:
  """Formats one flag with its wrapped explanation."""
  indent = " " * 6
  body = textwrap.wrap(
      text, WIDTH, initial_indent=indent, subsequent_indent=indent
  )
  return [f"  {flag}={value}" if value else f"  {flag}", *body]
