"""Reads rollouts of other systems from JSON lines or Parquet into shards.

Reads --config.import_rollouts.files in the layout that `format` names
(jaxrl_llm: a file of `export-rollouts`); `fields` maps single fields to other
paths. The shards lie in rollouts/round_K/host_000 under --workdir, as if
generated, and `train` reads them. A row is refused, with its file and line,
where it does not say what training must know; then nothing is written, and the
exit code is 1. Without behaviour log-probs a row is refused unless
`recompute_logprobs` puts those of the configured model in their place.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import pathlib
import sys

import ml_collections

from jaxrl_llm import types
from jaxrl_llm.data import dump_files
from jaxrl_llm.data import exchange
from jaxrl_llm.data import importing
from jaxrl_llm.data import layouts
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.rollout import summary
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import imports
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import settings

SECTIONS = (
    "seed", "mesh", "model", "reward", "import_rollouts",
    "generation.records_per_shard", "train.rows_per_microbatch",
    "train.tokens_per_row",
)
# Refused rows that are printed; the others are counted.
_SHOWN = 20


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> int:
  """Imports and says what came of it; 1 if a row was refused."""
  workdir = flags.require_workdir(workdir, "import-rollouts")
  with folders.alone(workdir):
    return _main(config, workdir)


def _main(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> int:
  """Does what `main` says, as the only writer."""
  chosen = settings.build(layouts.ImportSettings, "import_rollouts", config)
  files = dump_files.find(chosen.files)
  text_tokenizer = parts.tokenizer(config)
  record.compare(config, ("model",), workdir)
  if chosen.format == layouts.NATIVE:
    wanted, refused = _exported(files, text_tokenizer)
  else:
    wanted, refused = _foreign(config, chosen, files, text_tokenizer)
  if refused or not wanted:
    return _refuse(refused, files)
  record.agree(config, ("model",), workdir)
  for one in wanted:
    folder = folders.host_folder(workdir, one.metadata.round, 0)
    _write(folder, one, config.generation.records_per_shard)
  return 0


def _foreign(
    config: ml_collections.ConfigDict,
    chosen: layouts.ImportSettings,
    files: Sequence[pathlib.Path],
    text_tokenizer: tokenizer_lib.Tokenizer,
) -> tuple[list[imports.Folder], list[str]]:
  """Reads another system's dump: a folder, and the refused rows."""
  verifier = imports.grader(config, chosen)
  model = parts.model(config, text_tokenizer)
  vocab_size = model.policy.config.vocab_size
  reader = importing.Reader(chosen, text_tokenizer, vocab_size)
  drafts, refused = [], []
  for path in files:
    for place, row in dump_files.read(path):
      if isinstance(row, ValueError):
        refused.append(f"{place}: {row}")
        continue
      for found in reader.drafts(place, row):
        if isinstance(found, ValueError):
          refused.append(str(found))
        else:
          drafts.append(found)
  if refused or not drafts:
    return [], refused
  folder = imports.foreign(config, chosen, files, text_tokenizer, drafts)
  if verifier is not None:
    folder = imports.graded(verifier, folder)
  refused = _misfits(folder)
  if not refused and (chosen.recompute_logprobs or chosen.drawn_by_model):
    folder = imports.with_model(config, chosen, model, folder)
  return [folder], refused


def _exported(
    files: Sequence[pathlib.Path], text_tokenizer: tokenizer_lib.Tokenizer
) -> tuple[list[imports.Folder], list[str]]:
  """Reads files of `export-rollouts`: a folder per round, refused rows.

  Raises:
    ValueError: rows of one round are of two generations.
  """
  found: dict[int, imports.Folder] = {}
  weights: dict[int, dict[str, float]] = {}
  refused = []
  for path in files:
    for place, row in dump_files.read(path):
      try:
        if isinstance(row, ValueError):
          raise row
        rollout, metadata, weight = exchange.record(row, place)
        _check_tokenizer(metadata, text_tokenizer)
      except ValueError as error:
        refused.append(f"{place}: {str(error).rstrip('.')}.")
        continue
      folder = found.setdefault(
          metadata.round, imports.Folder(metadata, [], [])
      )
      if folder.metadata != metadata:
        raise ValueError(
            f"{place}: round {metadata.round} has other metadata at"
            f" {folder.places[0]}; import the two into two --workdir."
        )
      folder.places.append(place)
      folder.rollouts.append(rollout)
      if weight is not None:
        known = weights.setdefault(metadata.round, {})
        known[str(rollout.prompt_id)] = weight
  for number, known in weights.items():
    metadata = found[number].metadata
    config = {**metadata.config, schema.PROMPT_WEIGHTS: known}
    found[number].metadata = dataclasses.replace(metadata, config=config)
  wanted = [found[number] for number in sorted(found)]
  return wanted, refused + [line for one in wanted for line in _misfits(one)]


def _check_tokenizer(
    metadata: schema.FolderMetadata, text_tokenizer: tokenizer_lib.Tokenizer
) -> None:
  """Refuses ids of another tokenizer."""
  if metadata.tokenizer_fingerprint != text_tokenizer.fingerprint:
    raise ValueError(
        f"folder: written with tokenizer {metadata.tokenizer_fingerprint}, the"
        f" configured one is {text_tokenizer.fingerprint}; set model.path or"
        " model.tokenizer to that of the model that generated"
    )


def _misfits(folder: imports.Folder) -> list[str]:
  """Says of each record that the shard contract forbids, and why."""
  first: dict[int, str] = {}
  lines = []
  for place, rollout in zip(folder.places, folder.rollouts):
    problem = schema.misfit(rollout, folder.metadata)
    before = first.setdefault(rollout.record_id, place)
    if problem is None and before != place:
      problem = f"record_id: the same record is at {before}"
    if problem:
      lines.append(f"{place}: {problem}; delete or mend the row.")
  return lines


def _refuse(refused: Sequence[str], files: Iterable[pathlib.Path]) -> int:
  """Prints why nothing was written."""
  for line in refused[:_SHOWN]:
    print(line, file=sys.stderr)
  if len(refused) > _SHOWN:
    print(f"… and {len(refused) - _SHOWN} more.", file=sys.stderr)
  if not refused:
    names = ", ".join(map(str, files))
    print(f"{names}: expected rows, found none.", file=sys.stderr)
  print(f"{len(refused)} responses or rows refused; nothing was written.")
  return 1


def _write(folder: pathlib.Path, one: imports.Folder, size: int) -> None:
  """Writes the shards that are missing, and says what the folder holds."""
  starts = range(0, len(one.rollouts), size)
  writer = shards.ShardWriter(folder, one.metadata, len(starts))
  tally = summary.Tally()
  for index, start in enumerate(starts):
    rollouts = one.rollouts[start : start + size]
    if writer.path(index).is_file():
      _check_same(writer, index, rollouts)
    else:
      writer.write(index, rollouts)
    tally.add(rollouts)
  writer.finish()
  print(f"round {one.metadata.round}: {tally.finish()}")
  print(f"log-probs: {one.metadata.sampling.get('logprobs', 'as exported')}")
  print(f"shards: {folder}")


def _check_same(
    writer: shards.ShardWriter,
    index: int,
    rollouts: Sequence[types.Rollout],
) -> None:
  """Compares a shard of an earlier import with the rows."""
  found = [rollout.record_id for rollout in writer.read(index)]
  if found != [rollout.record_id for rollout in rollouts]:
    raise ValueError(
        f"{writer.path(index)}: expected the {len(rollouts)} records of the"
        f" files, found {len(found)} others; delete the folder, or choose"
        " another --workdir."
    )
