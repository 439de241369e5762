"""Where things lie under a working directory."""

from collections.abc import Iterator
import contextlib
import fcntl
import pathlib

from jaxrl_llm.data import manifest

_LOCK = ".lock"


@contextlib.contextmanager
def alone(workdir: pathlib.Path) -> Iterator[None]:
  """Keeps a second writer out of a working directory.

  The system lets go of the lock when the process ends, however it ends.

  Raises:
    ValueError: another command is writing there.
  """
  with (workdir / _LOCK).open("a") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise ValueError(
          f"{workdir}: another command is writing to it; let it end, or choose"
          " another --workdir."
      ) from error
    yield


def round_folder(workdir: pathlib.Path, round_number: int) -> pathlib.Path:
  """Returns the folder of a round; it holds one folder per host."""
  return workdir / "rollouts" / f"round_{round_number:05d}"


def host_folder(
    workdir: pathlib.Path, round_number: int, host: int
) -> pathlib.Path:
  """Returns the shard folder that one host writes in a round."""
  return round_folder(workdir, round_number) / f"host_{host:03d}"


def round_plan(workdir: pathlib.Path, round_number: int) -> pathlib.Path:
  """Returns the file that says what a round generates."""
  return workdir / "allocation" / f"round_{round_number:05d}.json"


def checkpoints(workdir: pathlib.Path) -> pathlib.Path:
  """Returns the folder that training saves into."""
  return workdir / "checkpoints"


def rollouts(names: str, workdir: pathlib.Path | None) -> list[pathlib.Path]:
  """Lists shard folders, finished or not.

  Args:
    names: comma-separated; each is a shard folder or holds some.
    workdir: searched when no name is given.

  Raises:
    FileNotFoundError: a place does not exist or holds none.
    ValueError: neither a name nor a working directory was given.
  """
  places = [pathlib.Path(name) for name in names.split(",") if name]
  if not places and workdir is None:
    raise ValueError(
        "no shard folder was named; give --workdir=DIR or"
        " --config.train.rollouts=FOLDER."
    )
  found = []
  for place in places or [workdir]:
    inside = [path.parent for path in place.rglob(manifest.METADATA_NAME)]
    if not inside:
      raise FileNotFoundError(
          f"{place}: expected shard folders in it, found none; run the verb"
          " generate, or correct the path."
      )
    found += sorted(inside)
  return list(dict.fromkeys(found))
