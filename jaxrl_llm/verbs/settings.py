"""Sections of the configuration to the frozen dataclasses of the packages."""

import dataclasses
from typing import Any, TypeVar

import ml_collections

from jaxrl_llm.verbs import keys

Settings = TypeVar("Settings")


def build(
    kind: type[Settings], section: str, config: ml_collections.ConfigDict
) -> Settings:
  """Makes the settings of one section; every key must find its field.

  Args:
    kind: frozen dataclass with a field per key of the section.
    section: name of the section, as "train".
    config: the whole configuration.

  Raises:
    ValueError: a key without a field or a field without a key, named with the
      nearest valid one; or a value that the dataclass refuses.
  """
  values = values_of(section, config)
  valid = [f"{section}.{field.name}" for field in dataclasses.fields(kind)]
  names = [f"{section}.{name}" for name in values]
  keys.check(names, valid, section)
  keys.require(names, valid, section)
  return kind(**values)


def values_of(
    section: str, config: ml_collections.ConfigDict
) -> dict[str, Any]:
  """Returns a section as a plain dictionary; unset placeholders are None."""
  return config[section].to_dict()


def overrides(
    section: str, config: ml_collections.ConfigDict
) -> dict[str, Any]:
  """Returns the keys of a section that are set."""
  values = values_of(section, config)
  return {key: value for key, value in values.items() if value is not None}
