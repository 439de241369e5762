"""The registry: ways to share out rollouts, with paper and arXiv id."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from jaxrl_llm.allocation import cero
from jaxrl_llm.allocation import codapo
from jaxrl_llm.allocation import dapo
from jaxrl_llm.allocation import dppo_pruning
from jaxrl_llm.allocation import gvm
from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import keys
from jaxrl_llm.allocation import knapsack
from jaxrl_llm.allocation import reinforce_ada
from jaxrl_llm.allocation import spo
from jaxrl_llm.allocation import uniform


@dataclasses.dataclass(frozen=True)
class Method:
  """A named way to share out rollouts.

  Attributes:
    name: word of `config.allocation.name`.
    title: title of the paper, or what the method is called.
    arxiv: arXiv id, empty where there is none.
    allocator: with its defaults.
  """

  name: str
  title: str
  arxiv: str
  allocator: interface.Allocator


_METHODS = (
    Method(
        "uniform", "The same number for each prompt by turn", "",
        uniform.Uniform(),
    ),
    Method(
        "cero", "CERO: Where and When to Allocate Rollouts", "2606.05606",
        cero.Cero(),
    ),
    Method(
        "knapsack", "Knapsack RL: rollouts by value and cost", "2509.25849",
        knapsack.Knapsack(),
    ),
    Method(
        "gvm", "GVM-RAFT: dynamic sample allocation, with pilots", "2505.02391",
        gvm.Gvm(),
    ),
    Method(
        "reinforce_ada", "Reinforce-Ada: sample until there is signal",
        "2510.04996", reinforce_ada.ReinforceAda(),
    ),
    Method(
        "dapo", "DAPO: dynamic sampling, forecast from the last round",
        "2503.14476", dapo.Dapo(),
    ),
    Method(
        "codapo", "CoDaPO: the most learnable questions again", "2606.07950",
        codapo.Codapo(),
    ),
    Method(
        "dppo_pruning", "DPPO: prompts pruned by their history, without bias",
        "2603.04135", dppo_pruning.DppoPruning(),
    ),
    Method(
        "spo", "Single-stream Policy Optimization: prompt sampling",
        "2509.13232", spo.Spo(),
    ),
)

REGISTRY: dict[str, Method] = {method.name: method for method in _METHODS}


def table() -> str:
  """The registry as a Markdown table."""
  rows = ["| name | what | paper |", "|---|---|---|"]
  for method in _METHODS:
    arxiv = method.arxiv
    link = f"[{arxiv}](https://arxiv.org/abs/{arxiv})" if arxiv else "–"
    rows.append(f"| `{method.name}` | {method.title} | {link} |")
  return "\n".join(rows)


def describe(name: str, allocator: interface.Allocator) -> str:
  """Names the method and its numbers in one line."""
  numbers = ", ".join(
      f"{field.name} {getattr(allocator, field.name)}"
      for field in dataclasses.fields(allocator)
      if getattr(allocator, field.name) is not None
  )
  return f"allocation: {name}" + (f" ({numbers})" if numbers else "")


def build(overrides: Mapping[str, Any]) -> interface.Allocator:
  """Returns the allocator of `overrides["name"]` with the other keys applied.

  Args:
    overrides: keys of `config.allocation` that are set.

  Raises:
    ValueError: one line naming the key and the remedy.
  """
  fields = dict(overrides)
  name = fields.pop("name", None)
  if name not in REGISTRY:
    nearest = difflib.get_close_matches(str(name), list(REGISTRY), 1, 0.0)[0]
    raise ValueError(
        f"allocation.name: no method {name!r}; the nearest is {nearest!r}."
    )
  return keys.override(REGISTRY[name].allocator, fields)
