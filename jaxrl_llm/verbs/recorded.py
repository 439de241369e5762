"""Reads config.json of a working directory; see record.py, which writes it.

Apart from it because the command line is read before jax is imported.
"""

from collections.abc import Collection, Mapping
import pathlib
from typing import Any

import ml_collections

from jaxrl_llm.data import atomic
from jaxrl_llm.verbs import keys

FILE = "config.json"
# Say how a verb goes about it, not what made the working directory: base.py's
# where nothing is recorded.
_FREE = ("distributed", "evaluation", "export", "mesh")


def of_workdir(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    sections: Collection[str],
    named: Collection[str],
) -> ml_collections.ConfigDict:
  """Returns the configuration that made a working directory.

  Args:
    config: of base.py, with what the command line names; not changed.
    workdir: holds config.json.
    sections: sections and keys that the verb reads.
    named: keys that the command line names; they stay.

  Raises:
    FileNotFoundError: there is no config.json.
    ValueError: it is damaged, lacks a key, or has one that this version does
      not know.
  """
  path = workdir / FILE
  if not path.is_file():
    raise FileNotFoundError(
        f"{path}: there is no such file to take the configuration from; give"
        " the --workdir of a run, or --config=FILE."
    )
  found = read(path)
  known = (*found, *named, *_FREE)
  for name in keys.flatten(config.to_dict()):
    if keys.within(name, sections) and not keys.within(name, known):
      raise ValueError(
          f"{path}: expected the key {name}, found it not recorded; give"
          " --config=FILE."
      )
  chosen = {
      name: value
      for name, value in found.items()
      if keys.within(name, sections) and name not in named
  }
  return restore(config, chosen)


def restore(
    config: ml_collections.ConfigDict, recorded: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Returns a configuration with the keys that a config.json records.

  Args:
    config: has the keys that are not recorded; not changed.
    recorded: of `read`.

  Raises:
    ValueError: a key that this version does not know.
  """
  config = config.copy_and_resolve_references()
  valid = keys.flatten(config.to_dict())
  keys.check(recorded, valid, FILE)
  with config.ignore_type():
    for name, value in recorded.items():
      section, _, key = name.rpartition(".")
      held = config[section] if section else config
      held[key] = tuple(value) if isinstance(value, list) else value
  return config


def read(path: pathlib.Path) -> Mapping[str, Any]:
  """Reads a config.json.

  Raises:
    ValueError: it is damaged.
  """
  return atomic.read_json(path, (), "restore it or delete it")
