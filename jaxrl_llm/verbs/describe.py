"""Prints the objective in words and as a formula, and what it needs.

With --config.objective.name and other objective keys, prints what that
choice would compute; with --config.allocation.name, how rollouts are shared
out; with --config.curation.name, which episodes count; and how a critic
learns, where the objective has one. Writes nothing.
"""

from collections.abc import Iterable
import dataclasses
import pathlib

import ml_collections
import rich
from rich import table

from jaxrl_llm.allocation import registry
from jaxrl_llm.curation import methods
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import settings

SECTIONS = ("objective", "allocation", "critic", "curation")


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Describes objective, allocation and curation, lists the registries."""
  del workdir  # Nothing is written.
  spec = algorithms.build(settings.overrides("objective", config))
  print(objective.describe(spec))
  print(f"needs         {'; '.join(needs(spec)) or 'nothing more'}")
  critic = parts.critic_settings(config)
  if critic is not None:
    numbers = dataclasses.asdict(critic).items()
    said = ", ".join(f"{key} {value}" for key, value in numbers if value)
    print(f"critic: {said}")
  allocator = registry.build(settings.overrides("allocation", config))
  print(registry.describe(config.allocation.name, allocator))
  step = methods.build(settings.overrides("curation", config))
  methods.validate(step, spec)
  print(methods.describe(config.curation.name or methods.NONE, step))
  print()
  rich.print(_listing("objective.name", sorted(algorithms.REGISTRY.items())))
  rich.print(_listing("allocation.name", registry.REGISTRY.items()))
  rich.print(_listing("curation.name", methods.REGISTRY.items()))


def needs(spec: objective.Spec) -> list[str]:
  """Says what the job must supply beside live log-probs and advantages."""
  wanted = objective.requirements(spec)
  said = {
      "one forward pass over a rollout batch before its first update":
          wanted.proximal or wanted.proximal_topk,
      f"the proximal policy's top {wanted.proximal_topk} from that pass":
          wanted.proximal_topk,
      f"the behavior policy's top {wanted.behavior_topk} in the shards"
      f" (sampling.record_topk={wanted.behavior_topk})": wanted.behavior_topk,
      "a reference policy": wanted.reference,
      "the policy version of each token": wanted.versions,
      "the live entropy": wanted.entropy,
      "a gradient-free pass over each mini-batch": wanted.statistics,
      "groups of two or more responses": wanted.group_baseline,
      "one greedy response per prompt": wanted.greedy_baseline,
      "a critic (config.critic)": wanted.critic,
      "a random draw per token": wanted.key,
  }
  return [words for words, needed in said.items() if needed]


def _listing(
    key: str,
    named: Iterable[
        tuple[str, algorithms.Algorithm | registry.Method | methods.Method]
    ],
) -> table.Table:
  """Lists what a key may name."""
  listing = table.Table(
      title=f"What --config.{key} may be:", title_justify="left"
  )
  for column in ("name", "title", "arXiv"):
    listing.add_column(column)
  for name, method in named:
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
