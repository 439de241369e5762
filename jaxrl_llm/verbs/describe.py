"""Prints the objective in words and as a formula, and what it needs.

With --config.objective.name and other objective keys, prints what that
choice would compute; with --config.allocation.name, how rollouts are shared
out. Writes nothing.
"""

from collections.abc import Iterable
import pathlib

import ml_collections
import rich
from rich import table

from jaxrl_llm.allocation import registry
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.verbs import settings

SECTIONS = ("objective", "allocation")


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Describes config.objective and config.allocation, lists registries."""
  del workdir  # Nothing is written.
  spec = algorithms.build(settings.overrides("objective", config))
  print(objective.describe(spec))
  allocator = registry.build(settings.overrides("allocation", config))
  print(registry.describe(config.allocation.name, allocator))
  print()
  rich.print(_listing("objective.name", sorted(algorithms.REGISTRY.items())))
  rich.print(_listing("allocation.name", registry.REGISTRY.items()))


def _listing(
    key: str,
    methods: Iterable[tuple[str, algorithms.Algorithm | registry.Method]],
) -> table.Table:
  """Lists what a key may name."""
  listing = table.Table(title=key, title_justify="left")
  for column in ("name", "title", "arXiv"):
    listing.add_column(column)
  for name, method in methods:
    listing.add_row(name, method.title, method.arxiv)
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
