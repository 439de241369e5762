"""Responses that a round leaves unfinished, and the round that goes on."""

import pathlib

import ml_collections

from jaxrl_llm import types
from jaxrl_llm.data import manifest
from jaxrl_llm.data import shards
from jaxrl_llm.losses import objective
from jaxrl_llm.rollout import windows
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts


def cuts(config: ml_collections.ConfigDict) -> bool:
  """Whether responses may go on over several rounds."""
  sampling = parts.sampling_settings(config)
  return parts.generation_settings(config).cuts(sampling)


def check(config: ml_collections.ConfigDict) -> None:
  """Refuses windows that the run has no use for.

  Raises:
    ValueError: the objective needs rewards that half a response lacks, or an
      allocation or a curation would read them.
  """
  if not cuts(config):
    return
  found = f"generation.window: found {config.generation.window}"
  if not objective.requirements(parts.spec(config)).bootstraps:
    raise ValueError(
        f"{found}, but {config.objective.name} needs the reward of every"
        " response and a window leaves some unfinished; set it to 0, or choose"
        " an objective whose critic stands in for the reward, such as tppo."
    )
  if config.allocation.name != "uniform":
    raise ValueError(
        f"{found}, but allocation.name={config.allocation.name} learns from"
        " whole responses; set the window to 0, or the allocation to uniform."
    )
  if config.curation.name == "codapo":
    raise ValueError(
        f"{found}, but curation.name=codapo counts solved responses; set the"
        " window to 0, or choose another curation."
    )


def unfinished(
    config: ml_collections.ConfigDict, workdir: pathlib.Path, number: int
) -> list[types.Rollout]:
  """Reads the responses that go on in a round, from the round before.

  Args:
    config: the whole configuration.
    workdir: holds the shards.
    number: of the round that goes on with them.

  Returns:
    See rollout.windows.unfinished. None in round 0 or without windows.

  Raises:
    ValueError: shards of the round before are missing or damaged.
  """
  if not number or not cuts(config):
    return []
  first, hosts = folders.host_folder(workdir, number - 1, 0), 1
  if (first / manifest.METADATA_NAME).is_file():
    hosts = folders.parts_of(first) or 1
  members = [
      folders.host_folder(workdir, number - 1, host) for host in range(hosts)
  ]
  missing = manifest.missing_folders(members)
  if missing:
    raise ValueError(
        f"{missing[0]}: expected finished shards, whose unfinished responses"
        f" go on in round {number}, found none; restore the folder, or begin"
        " another --workdir."
    )
  opened = map(shards.open_folder, members)
  return windows.unfinished(
      folder[place] for folder in opened for place in range(len(folder))
  )


def say_left(
    config: ml_collections.ConfigDict, workdir: pathlib.Path, rounds_: int
) -> None:
  """Prints how many responses are unfinished when a run's rounds are done."""
  if cuts(config):
    left = len(unfinished(config, workdir, rounds_))
    print(f"unfinished: {left} responses of the last round; a higher run.rounds"
          " goes on with them")
