"""Finds what is wrong with a rollout folder and says what to do about it."""

from collections.abc import Iterator, MutableMapping
import os
import pathlib

from array_record.python import array_record_module
import tensorflow_datasets as tfds

from jaxrl_llm.data import manifest as manifests
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards

_REMEDY = (
    f"delete the shard and {manifests.NAME}, then run the same `generate` or"
    " `import-rollouts` again"
)


def verify(
    folder: str | os.PathLike[str],
    tokenizer_fingerprint: str | None = None,
    seen: MutableMapping[int, str] | None = None,
) -> list[str]:
  """Checks a folder to the last record; reads everything, raises nothing.

  Args:
    folder: to check.
    tokenizer_fingerprint: of the tokenizer it should have been written with;
      None does not ask.
    seen: places of record ids, filled while reading; give the same one for
      every folder of a round to find records that are in two of them.

  Returns:
    One line per problem: file, record, what is wrong, remedy. Empty when the
    folder is sound.
  """
  folder = pathlib.Path(folder)
  seen = {} if seen is None else seen
  try:
    manifest = manifests.read(folder)
    metadata = shards.read_metadata(folder)
  except (FileNotFoundError, ValueError) as error:
    return [str(error)]
  lines = []
  written = metadata.tokenizer_fingerprint
  if tokenizer_fingerprint not in (None, written):
    lines.append(
        f"{folder / manifests.METADATA_NAME}: written with tokenizer {written},"
        f" expected {tokenizer_fingerprint}; use the model that generated the"
        " folder, or generate it again."
    )
  damaged = dict(manifests.damage(folder, manifest))
  lines += [f"{folder / name}: {what}" for name, what in damaged.items()]
  lines += [
      f"{path}: not in {manifests.NAME}; delete it, or move it to its folder."
      for path in sorted(folder.glob("*.array_record-*"))
      if path.name not in manifest.files and path.suffix != ".beside"
  ]
  described = schema.features(metadata)
  for name in manifest.shards:
    if (folder / name).is_file():
      expected = manifest.files[name].records
      problems = _records(folder / name, expected, described, metadata, seen)
      lines += [f"{folder / name}{problem}" for problem in problems]
  return lines


def _records(
    path: pathlib.Path,
    expected: int,
    described: tfds.features.FeaturesDict,
    metadata: schema.FolderMetadata,
    seen: MutableMapping[int, str],
) -> Iterator[str]:
  """Yields what is wrong with a shard's records, without the file's name."""
  try:
    reader = array_record_module.ArrayRecordReader(str(path))
    found = reader.num_records()
  except RuntimeError as error:
    yield f": no array_record file ({_line(error)}); {_REMEDY}."
    return
  if found != expected:
    yield f": {found} records, {manifests.NAME} says {expected}; {_REMEDY}."
  for index in range(found):
    try:
      example = described.deserialize_example_np(reader.read([index])[0])
      rollout = schema.decode(example, metadata)
      problem = schema.misfit(rollout, metadata)
    except (RuntimeError, ValueError, IndexError) as error:
      yield f", record {index}: unreadable ({_line(error)}); {_REMEDY}."
      continue
    if problem:
      yield f", record {index}: {problem}; {_REMEDY}."
    place = f"{path}, record {index}"
    first = seen.setdefault(rollout.record_id, place)
    if first != place:
      yield (
          f", record {index}: id {rollout.record_id} is also at {first}; keep"
          " one of the two folders or shards."
      )


def _line(error: Exception) -> str:
  """Shortens an error to a piece of one line."""
  return str(error).split("\n", maxsplit=1)[0][:160]
