"""The objectives that a comparison names, and what each of them lacks."""

import ast
from collections.abc import Mapping
import dataclasses
import re
from typing import Any

import numpy as np

from jaxrl_llm.data import index as indices
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective

ALL = "all"
# Bytes of a folder's name. File systems take 255; what is written beside a
# folder has a longer name.
_LONGEST = 200


@dataclasses.dataclass(frozen=True)
class Entry:
  """One objective of a comparison.

  Attributes:
    label: how tables call it.
    spec: its parts; None where they cannot be put together.
    problem: why it cannot be compared, in one line; empty if it can.
  """

  label: str
  spec: objective.Spec | None
  problem: str = ""

  @property
  def folder(self) -> str:
    """The label as the name of a folder."""
    return re.sub(r"[^\w.=+-]+", "-", self.label)


def parse(text: str, correction: str) -> list[Entry]:
  """Reads `lab.objectives`.

  Args:
    text: "all", or [LABEL=]NAME[:KEY=VALUE…] separated by commas.
    correction: objective.correction of those that would hide staleness.

  Returns:
    The objectives in the order named. With "all", in that of the names, those
    that do not take the correction with their problem.

  Raises:
    ValueError: an unknown name, with the nearest one; a key or value that does
      not fit; two of one label; none at all.
  """
  if text.strip() == ALL:
    return [_attempt(name, correction) for name in sorted(algorithms.REGISTRY)]
  words = [word.strip() for word in text.split(",") if word.strip()]
  if not words:
    raise ValueError(
        "lab.objectives: expected names of objectives separated by commas, or"
        " all, found none."
    )
  entries = [_entry(word, correction) for word in words]
  folders = [entry.folder for entry in entries]
  for entry in entries:
    if folders.count(entry.folder) > 1:
      raise ValueError(
          f"lab.objectives: {entry.label} is there twice; give one of them"
          " another label, as LABEL=NAME."
      )
  return entries


def refused(text: str, problems: Mapping[str, str]) -> dict[str, str]:
  """Says why objectives are left out of a comparison.

  Args:
    text: `lab.objectives`.
    problems: why an objective cannot be compared, by label; empty if it can.

  Returns:
    The problems without the empty ones.

  Raises:
    ValueError: an objective that was named cannot be compared, or none can.
  """
  found = {label: why for label, why in problems.items() if why}
  if found and (text.strip() != ALL or len(found) == len(problems)):
    label, why = next(iter(found.items()))
    raise ValueError(f"lab.objectives: {label}: {why}")
  return found


def _attempt(name: str, correction: str) -> Entry:
  try:
    return _entry(name, correction)
  except ValueError as error:
    return Entry(name, None, str(error))


def _entry(word: str, correction: str) -> Entry:
  """Reads one objective."""
  head, *settings = word.split(":")
  label, equals, name = head.rpartition("=")
  fields: dict[str, Any] = {"name": name.strip()}
  for setting in settings:
    key, equals_, value = setting.partition("=")
    if not equals_:
      raise ValueError(
          f"lab.objectives: {word}: expected KEY=VALUE after each colon, found"
          f" {setting!r}."
      )
    fields[key.strip()] = _value(value.strip())
  label = label.strip() if equals else word
  if not re.search(r"\w", label):
    raise ValueError(
        f"lab.objectives: {word}: expected a label with a letter or digit,"
        f" found {label!r}; correct it, as LABEL=NAME."
    )
  size = len(Entry(label, None).folder.encode())
  if size > _LONGEST:
    raise ValueError(
        f"lab.objectives: {label[:40]}…: expected a label that names a folder"
        f" in at most {_LONGEST} bytes, found {size}; give a shorter one, as"
        " LABEL=NAME."
    )
  try:
    spec = algorithms.build(fields)
    if not objective.requirements(spec).correction_named:
      spec = algorithms.build(fields | {"correction": correction})
  except ValueError as error:
    raise ValueError(f"lab.objectives: {word}: {error}") from error
  return Entry(label, spec)


def _value(text: str) -> Any:
  """A number or a truth value where it reads as one, else the text."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def lacking(spec: objective.Spec, index: indices.Index) -> str:
  """Says what an objective needs that rollouts alone do not give.

  What else may be missing is refused where the round is opened.

  Args:
    spec: the objective.
    index: of the records.

  Returns:
    One line; empty where nothing is missing.
  """
  needs = objective.requirements(spec)
  if needs.critic:
    return "it takes its advantages from a critic, and there is none here"
  if needs.greedy_baseline:
    sampled = index.group_ids[~index.baseline_mask]
    answered = index.group_ids[index.baseline_mask]
    missing = np.setdiff1d(sampled, answered).size
    if missing:
      return (
          "it subtracts the reward of a greedy response, and"
          f" {missing} of {np.unique(sampled).size} groups have none; generate"
          " with this objective"
      )
  return ""
