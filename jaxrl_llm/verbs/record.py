"""config.json of a working directory: what made the files in it.

Each verb records the sections that it reads; a later command must agree with
what is recorded, so that no file is resumed under other settings.
"""

from collections.abc import Iterable
import json
import pathlib
from typing import Any

import jax
import ml_collections

from jaxrl_llm.data import atomic
from jaxrl_llm.verbs import keys
from jaxrl_llm.verbs import recorded as recorded_lib

# May differ between two commands: they change no file that is there already.
HARMLESS = (
    "evaluation.checkpoint",
    "export",
    "generation.spread_weights",
    "mesh",
    "report",
    "run",
    "train.rollouts",
    "train.checkpoints_kept",
)
# Says which process this is, not what the job makes.
_OF_A_PROCESS = ("distributed",)


def agree(
    config: ml_collections.ConfigDict,
    sections: Iterable[str],
    workdir: pathlib.Path,
) -> None:
  """Compares the configuration with the recorded one, then records it.

  Called when nothing of the configuration can be refused any more: what was
  refused must not bind the command that mends it.
  """
  sections = tuple(sections)
  compare(config, sections, workdir)
  path = workdir / recorded_lib.FILE
  current = select(config, sections)
  recorded = recorded_lib.read(path) if path.is_file() else {}
  if recorded != recorded | current and jax.process_index() == 0:
    atomic.write_json(path, recorded | current)


def compare(
    config: ml_collections.ConfigDict,
    sections: Iterable[str],
    workdir: pathlib.Path,
) -> None:
  """Compares the configuration with the recorded one.

  Args:
    config: the whole configuration.
    sections: names of the sections and top-level keys that the verb reads.
    workdir: holds config.json.

  Raises:
    ValueError: naming the keys that differ, with both values.
  """
  path = workdir / recorded_lib.FILE
  current = select(config, sections)
  recorded = recorded_lib.read(path) if path.is_file() else {}
  odd = [
      f"{key} (was {recorded[key]!r}, now {value!r})"
      for key, value in current.items()
      if key in recorded
      and recorded[key] != value
      and not keys.within(key, HARMLESS)
  ]
  if odd:
    raise ValueError(
        f"{workdir} was begun with another configuration: {'; '.join(odd)};"
        " give the same values to resume, or another --workdir."
    )


def select(
    config: ml_collections.ConfigDict, sections: Iterable[str]
) -> dict[str, Any]:
  """Returns the keys of some sections as {"train.epochs": 2, …}, JSON-like."""
  sections = tuple(sections)
  chosen = {
      key: value
      for key, value in keys.flatten(config.to_dict()).items()
      if keys.within(key, sections) and not keys.within(key, _OF_A_PROCESS)
  }
  return json.loads(json.dumps(chosen))
