"""Command line to configuration, with errors that name key and remedy."""

import pathlib
import sys

from absl import flags as absl_flags
from absl import logging
import ml_collections
from ml_collections import config_flags

from jaxrl_llm.verbs import keys
from jaxrl_llm.verbs import manual
from jaxrl_llm.verbs import recorded

# Verbs that can do without a configuration.
OPTIONAL = ("verify",)
# Verbs that take model and objective from the working directory: without
# --config they read base.py, whose other keys they leave alone.
RECORDED = ("report",)
# Verbs that without --config read the one that made the working directory.
RESUMED = ("evaluate", "export")
# Sections where an unset key takes the registry's value.
_REGISTRIES = ("objective", "allocation", "curation")


def parse(
    verb: str, arguments: list[str]
) -> tuple[ml_collections.ConfigDict | None, pathlib.Path | None]:
  """Reads --config, --config.key=value, --workdir and a verb's short flags.

  Args:
    verb: for messages.
    arguments: the command line after the verb.

  Returns:
    The configuration (None without --config, where the verb can do without),
    and the absolute working directory or None.

  Raises:
    ValueError: an unknown flag or key, a value of the wrong type.
    FileNotFoundError: no such config file, or none in the working directory.
  """
  logging.set_verbosity(logging.WARNING)
  arguments = _spelt_out(verb, arguments)
  valid = [key.name for key in keys.read()]
  overridden = [
      argument.lstrip("-").partition("=")[0]
      for argument in arguments
      if argument.startswith(("--config.", "-config."))
  ]
  names = [name.removeprefix("config.") for name in overridden]
  sections = {key.partition(".")[0] for key in valid}
  keys.check([name for name in names if name not in sections], valid, verb)
  config_file, arguments = _config_file(verb, arguments)
  resumed = config_file is None and verb in RESUMED
  config_file = keys.BASE_FILE if resumed else config_file
  unset, arguments = _unset(arguments)
  # config_flags wants the file before the keys.
  words = [verb, *([f"--config={config_file}"] if config_file else [])]
  words += arguments
  values = absl_flags.FlagValues()
  holder = None
  if config_file:
    holder = config_flags.DEFINE_config_file(
        "config", flag_values=values, sys_argv=words
    )
  absl_flags.DEFINE_string("workdir", None, "", flag_values=values)
  # Config files say `from configs import base` wherever they are read from.
  sys.path.append(str(keys.BASE_FILE.parents[1]))
  try:
    rest = values(words)[1:]
  except absl_flags.UnrecognizedFlagError as error:
    raise ValueError(_unknown(verb, error)) from error
  except absl_flags.Error as error:
    lines = str(error).strip().splitlines()
    if len(lines) == 1:
      raise ValueError(lines[0]) from error
    # The file's own error: a traceback, whose last line says what it was.
    raise ValueError(f"--config={config_file}: {lines[-1]}") from error
  except AttributeError as error:
    raise ValueError(
        f"--config={config_file}: it has no function get_config; see"
        " configs/quickstart.py."
    ) from error
  if rest:
    raise ValueError(
        f"{rest[0]!r} is not understood; expected flags as --workdir=DIR."
    )
  workdir = pathlib.Path(values.workdir).absolute() if values.workdir else None
  if holder is None:
    return None, workdir
  config = holder.value
  found = keys.flatten(config.to_dict())
  keys.check(found, valid, str(config_file))
  keys.require(found, valid, str(config_file))
  if resumed:
    config = _resumed(verb, config, workdir, names)
  for name in unset:
    _clear(config, name)
  return config, workdir


def _resumed(
    verb: str,
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path | None,
    named: list[str],
) -> ml_collections.ConfigDict:
  """Returns the working directory's configuration under the keys named."""
  if workdir is None:
    raise ValueError(
        f"{verb} needs a configuration; give --workdir=DIR of a run, which"
        f" holds its own in {recorded.FILE}, or --config=FILE."
    )
  return recorded.of_workdir(config, workdir, manual.sections(verb), named)


def _spelt_out(verb: str, arguments: list[str]) -> list[str]:
  """Puts keys for a verb's short flags."""
  keys_of = manual.short_flags(verb)
  words = []
  for word in arguments:
    name, equals, value = word.partition("=")
    key = keys_of.get(name.lstrip("-")) if name.startswith("-") else None
    words.append(f"--config.{key}{equals}{value}" if key else word)
  return words


def _unknown(verb: str, error: absl_flags.UnrecognizedFlagError) -> str:
  """Words what to do about a flag that a verb does not have."""
  for other in manual.VERBS:
    key = manual.short_flags(other).get(error.flagname)
    if key:
      return (
          f"--{error.flagname}: expected a flag of {verb}, found one of"
          f" {other}, where it is short for --config.{key}; leave it out."
      )
  return str(error)  # Names the nearest flag.


def _unset(arguments: list[str]) -> tuple[list[str], list[str]]:
  """Takes `--config.key=` out: the keys to unset, and the other words."""
  named = [
      word
      for word in arguments
      if word.startswith(tuple(f"--config.{name}." for name in _REGISTRIES))
      and word.endswith("=")
  ]
  others = [word for word in arguments if word not in named]
  return [word[len("--config.") : -1] for word in named], others


def _clear(config: ml_collections.ConfigDict, name: str) -> None:
  """Makes a key what it is where no file sets it."""
  section, _, key = name.rpartition(".")
  with config.ignore_type():
    config[section][key] = None


def _config_file(
    verb: str, arguments: list[str]
) -> tuple[pathlib.Path | None, list[str]]:
  """Finds the file that --config names; returns it and the other words."""
  path, others, words = None, [], iter(arguments)
  for word in words:
    name, equals, value = word.partition("=")
    if name in ("--config", "-config"):
      path = pathlib.Path(value if equals else next(words, ""))
    else:
      others.append(word)
  bare = not any(word.startswith("--config.") for word in others)
  if path is None and (verb in RESUMED or bare and verb in OPTIONAL):
    return None, others
  if path is None and verb in RECORDED:
    return keys.BASE_FILE, others
  if path is None:
    raise ValueError(
        f"{verb} needs a configuration; give --config=configs/quickstart.py"
        " or another file."
    )
  if not path.is_file():
    raise FileNotFoundError(
        f"--config={path}: there is no such file; expected one like"
        " configs/quickstart.py."
    )
  return path, others


def require_workdir(workdir: pathlib.Path | None, verb: str) -> pathlib.Path:
  """Returns the working directory, made if need be.

  Raises:
    ValueError: none was given.
    OSError: it cannot be made.
  """
  if workdir is None:
    raise ValueError(f"{verb} writes files; say where with --workdir=DIR.")
  try:
    workdir.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise OSError(
        f"--workdir={workdir}: cannot be made a folder ({error.strerror});"
        " choose another path."
    ) from error
  return workdir
