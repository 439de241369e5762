"""Writes and reads rollout folders: array_record shards that TFDS opens.

The unit of writing is one shard. A shard is written beside, closed, read back,
compared and renamed, so a file under its final name is whole; the manifest
comes last. A killed writer started again writes the shards that are missing.
A shard's bytes depend on its records alone. One writer to a folder.
"""

from collections.abc import Collection, Sequence
import json
import os
import pathlib

from array_record.python import array_record_module
import tensorflow_datasets as tfds
from tensorflow_datasets.core import example_serializer

from jaxrl_llm import types
from jaxrl_llm.data import atomic
from jaxrl_llm.data import manifest as manifests
from jaxrl_llm.data import schema

# One record a chunk: each is read and checked on its own, and a damaged chunk
# names its record.
_WRITER_OPTIONS = "group_size:1"


class ShardWriter:
  """Writes the shards of one folder, in any order, and then its manifest."""

  def __init__(
      self,
      folder: str | os.PathLike[str],
      metadata: schema.FolderMetadata,
      shards: int,
  ):
    """Opens a folder for writing; one begun earlier is resumed.

    Args:
      folder: created if need be.
      metadata: of all records of the folder; a resume must give the same.
      shards: how many shards the plan has.

    Raises:
      ValueError: the folder was begun with other metadata or another plan.
    """
    if shards < 1:
      raise ValueError(f"{folder}: expected ≥ 1 shards, found {shards}.")
    self.folder = pathlib.Path(folder)
    self.metadata = metadata
    self.shards = shards
    self._features = schema.features(metadata)
    self._serializer = example_serializer.ExampleSerializer(
        self._features.get_serialized_info()
    )
    self.folder.mkdir(parents=True, exist_ok=True)
    self._template = schema.filename_template(self.folder)
    self._claim()

  def path(self, shard_index: int) -> pathlib.Path:
    """Returns the final name of a shard."""
    if not 0 <= shard_index < self.shards:
      raise ValueError(
          f"{self.folder}: shard {shard_index} is not one of the"
          f" {self.shards} planned."
      )
    name = self._template.sharded_filepath(
        shard_index=shard_index, num_shards=self.shards
    )
    return pathlib.Path(name)

  def missing(self) -> list[int]:
    """Returns the shards still to be written, ascending."""
    return [
        index for index in range(self.shards) if not self.path(index).is_file()
    ]

  @property
  def finished(self) -> bool:
    """Whether the manifest is written."""
    return (self.folder / manifests.NAME).is_file()

  def write(self, shard_index: int, rollouts: Sequence[types.Rollout]) -> None:
    """Writes one shard; afterwards it is whole under its final name.

    Raises:
      ValueError: the shard is empty or already there, or a record does not
        fit the folder (NaN log-prob, another lineage, …).
      OSError: what was read back is not what was written.
    """
    path = self.path(shard_index)
    if path.is_file() or not rollouts:
      state = "is already written" if rollouts else "would be empty"
      raise ValueError(f"{path}: the shard {state}; write planned ones once.")
    serialized = [self._serialize(path, rollout) for rollout in rollouts]
    beside = path.with_name(path.name + ".beside")
    beside.unlink(missing_ok=True)
    writer = array_record_module.ArrayRecordWriter(str(beside), _WRITER_OPTIONS)
    for record in serialized:
      writer.write(record)
    writer.close()
    if _raw_records(beside) != serialized:
      raise OSError(
          f"{beside}: read back other records than were written; the disk is"
          " full or failing, free or replace it and run again."
      )
    atomic.publish(beside, path)

  def read(self, shard_index: int) -> list[types.Rollout]:
    """Reads a shard that is written, before the folder is finished.

    Raises:
      ValueError: the shard is damaged.
    """
    path = self.path(shard_index)
    try:
      examples = map(self._features.deserialize_example_np, _raw_records(path))
      return [schema.decode(example, self.metadata) for example in examples]
    except (RuntimeError, ValueError) as error:
      problem = str(error).split("\n", maxsplit=1)[0]
      raise ValueError(
          f"{path}: damaged ({problem}); delete it and run the same `generate`"
          " or `import-rollouts` again."
      ) from error

  def finish(self) -> manifests.Manifest:
    """Writes the TFDS description and then the manifest.

    Raises:
      ValueError: shards are missing or damaged.
    """
    if self.finished:
      return manifests.read(self.folder)
    if self.missing():
      raise ValueError(
          f"{self.folder}: shards {self.missing()} of {self.shards} are not"
          " written; write them before finishing."
      )
    records, size = self._survey()
    schema.describe(self.folder, self._features, records, size)
    shard_names = tuple(self.path(index).name for index in range(self.shards))
    counts = dict(zip(shard_names, records))
    names = [manifests.METADATA_NAME, "features.json", "dataset_info.json"]
    files = {
        name: manifests.entry(self.folder / name, counts.get(name, 0))
        for name in [*names, *shard_names]
    }
    manifest = manifests.Manifest(files, shard_names)
    manifests.write(self.folder, manifest)
    return manifest

  def _claim(self) -> None:
    """Writes the metadata, or compares it with what an earlier run wrote."""
    path = self.folder / manifests.METADATA_NAME
    content = {**self.metadata.to_json(), "shards": self.shards}
    content = json.loads(json.dumps(content))
    if not path.is_file():
      atomic.write_json(path, content)
      return
    found = manifests.read_json(path)
    if found == content:
      return
    odd = "; ".join(manifests.differences(found, content))
    raise ValueError(
        f"{self.folder}: begun with other settings: {odd}; resume it with the"
        " same ones, choose another folder or delete this one."
    )

  def _serialize(self, path: pathlib.Path, rollout: types.Rollout) -> bytes:
    """Turns a record into the bytes of a tf.train.Example."""
    try:
      example = schema.encode(rollout, self.metadata)
    except ValueError as error:
      raise ValueError(f"{path}: {error}; nothing was written.") from error
    encoded = self._features.encode_example(example)
    # The features are a protobuf map, whose order is by default another one in
    # every process.
    return self._serializer.get_tf_example(encoded).SerializeToString(
        deterministic=True
    )

  def _survey(self) -> tuple[list[int], int]:
    """Reads every shard again: records per shard and bytes of all records."""
    counts, size = [], 0
    for path in map(self.path, range(self.shards)):
      try:
        records = _raw_records(path)
      except RuntimeError:
        records = []
      if not records:
        raise ValueError(
            f"{path}: damaged since it was written; delete it and run again."
        )
      counts.append(len(records))
      size += sum(map(len, records))
    return counts, size


class Folder:
  """A finished folder: metadata, and records by position.

  Picklable, and safe to read from several threads.
  """

  def __init__(
      self,
      path: pathlib.Path,
      metadata: schema.FolderMetadata,
      manifest: manifests.Manifest,
  ):
    """Use `open_folder`, which checks what it opens."""
    self.path = path
    self.metadata = metadata
    self.manifest = manifest
    builder = tfds.builder_from_directory(os.fspath(path))
    self._records = builder.as_data_source(schema.SPLIT)
    manifests.check_count(path, manifest, len(self._records))

  def __len__(self) -> int:
    return self.manifest.records

  def __getitem__(self, position: int) -> types.Rollout:
    """Reads one record.

    Raises:
      ValueError: the record is damaged or must not be trained on.
    """
    if not 0 <= position < len(self):
      raise IndexError(f"{self.path}: no record {position} of {len(self)}")
    try:
      rollout = schema.decode(self._records[position], self.metadata)
      problem = schema.misfit(rollout, self.metadata)
    except (RuntimeError, ValueError) as error:
      problem = str(error)
    if problem:
      name, index = self.manifest.locate(position)
      raise ValueError(
          f"{self.path / name}, record {index}: {problem}; delete the shard and"
          f" {manifests.NAME}, then run the same `generate` or"
          " `import-rollouts` again."
      )
    return rollout


def open_folder(
    folder: str | os.PathLike[str],
    *,
    tokenizer_fingerprint: str | None = None,
    checksummed: Collection[str] | None = None,
) -> Folder:
  """Opens a finished folder and refuses one that does not fit.

  Args:
    folder: as `ShardWriter` left it.
    tokenizer_fingerprint: of the reader's tokenizer; None accepts any.
    checksummed: as in `manifest.damage`.

  Raises:
    FileNotFoundError: there is no folder or no manifest.
    ValueError: damaged files, another schema version, another tokenizer.
  """
  path = pathlib.Path(folder)
  manifest = manifests.read(path)
  metadata = read_metadata(path)
  for name, problem in manifests.damage(path, manifest, checksummed):
    raise ValueError(f"{path / name}: {problem}")
  written = metadata.tokenizer_fingerprint
  if tokenizer_fingerprint not in (None, written):
    raise ValueError(
        f"{path}: written with tokenizer {written}, this model's is"
        f" {tokenizer_fingerprint}; train the model that generated it."
    )
  return Folder(path, metadata, manifest)


def read_metadata(folder: pathlib.Path) -> schema.FolderMetadata:
  """Reads the metadata of a folder, finished or not.

  Raises:
    FileNotFoundError, ValueError: none there, damaged, another version.
  """
  path = folder / manifests.METADATA_NAME
  if not path.is_file():
    raise FileNotFoundError(f"{path}: missing; regenerate the folder.")
  content = manifests.read_json(path)
  content.pop("shards", None)
  return schema.FolderMetadata.from_json(content, str(path))


def _raw_records(path: pathlib.Path) -> list[bytes]:
  """Reads all records of a file, undecoded.

  Raises:
    RuntimeError: the file is no array_record file, or a chunk is damaged.
  """
  reader = array_record_module.ArrayRecordReader(str(path))
  try:
    return list(reader.read_all()) if reader.num_records() else []
  finally:
    reader.close()
