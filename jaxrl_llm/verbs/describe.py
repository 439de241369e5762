"""Prints the objective in words and as a formula, and what it needs.

With --config.objective.name and other objective keys, prints what that
choice would compute. Writes nothing.
"""

import pathlib

import ml_collections
import rich
from rich import table

from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.verbs import settings

SECTIONS = ("objective",)


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Describes config.objective, then lists the registry."""
  del workdir  # Nothing is written.
  spec = algorithms.build(settings.overrides("objective", config))
  print(objective.describe(spec))
  print()
  rich.print(_registry())


def _registry() -> table.Table:
  """Lists the algorithms by name."""
  listing = table.Table(title="objective.name", title_justify="left")
  for column in ("name", "title", "arXiv"):
    listing.add_column(column)
  for name, algorithm in sorted(algorithms.REGISTRY.items()):
    listing.add_row(name, algorithm.title, algorithm.arxiv)
  return listing


def markdown_rows() -> list[str]:
  """Returns the registry as the table of README.md."""
  rows = ["| name | what | paper |", "|---|---|---|"]
  for name, algorithm in sorted(algorithms.REGISTRY.items()):
    paper = "–"
    if algorithm.arxiv:
      link = f"https://arxiv.org/abs/{algorithm.arxiv}"
      paper = f"[{algorithm.arxiv}]({link})"
    rows.append(f"| `{name}` | {algorithm.title} | {paper} |")
  return rows
