"""Checks shard folders to the last record and says how to mend them.

Checks every folder with shards under --workdir (or that folder itself), or
those that --config.train.rollouts names. With --config the tokenizer must be
the model's. Exits with 1 when anything is wrong; changes nothing.
"""

import pathlib
import sys

import ml_collections

from jaxrl_llm import plurals
from jaxrl_llm.data import verify as verify_lib
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts

SECTIONS = ("train.rollouts", "model.path", "model.tokenizer")


def main(
    config: ml_collections.ConfigDict | None, workdir: pathlib.Path | None
) -> int:
  """Prints one line per problem and a closing line; 1 if there are any."""
  names, fingerprint = "", None
  if config is not None:
    names = config.train.rollouts
    fingerprint = parts.tokenizer(config).fingerprint
  chosen = folders.rollouts(names, workdir)
  seen: dict[int, str] = {}
  problems = [
      line
      for folder in chosen
      for line in verify_lib.verify(folder, fingerprint, seen)
  ]
  for line in problems:
    print(line, file=sys.stderr)
  print(
      f"{plurals.count(len(chosen), 'folder')},"
      f" {plurals.count(len(seen), 'record')} read,"
      f" {plurals.count(len(problems), 'problem')}."
  )
  return 1 if problems else 0
