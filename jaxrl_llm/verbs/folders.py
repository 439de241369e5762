"""Where things lie under a working directory."""

from collections.abc import Iterator, Sequence
import contextlib
import fcntl
import pathlib
import uuid

import jax

from jaxrl_llm import hosts
from jaxrl_llm.data import manifest
from jaxrl_llm.data import shards

_LOCK = ".lock"


@contextlib.contextmanager
def alone(workdir: pathlib.Path, worker: str = "") -> Iterator[None]:
  """Keeps a second writer out of a working directory.

  The system lets go of the lock when the process ends, however it ends. Of
  hosts that work together the first one locks for all.

  Args:
    workdir: to write to.
    worker: name of one of several that write different folders there; each
      keeps out another of its name, and all of them what is no worker.

  Raises:
    ValueError: another command is writing there, or hosts that work together
      do not see the same folder.
  """
  with contextlib.ExitStack() as locks:
    hosts.together(lambda: _lock_all(locks, workdir, worker))
    if jax.process_count() > 1:
      _require_shared(workdir)
    yield


def _lock_all(
    locks: contextlib.ExitStack, workdir: pathlib.Path, worker: str
) -> None:
  """Takes the locks of a process."""
  if jax.process_index() == 0:
    kind = fcntl.LOCK_SH if worker else fcntl.LOCK_EX
    _lock(locks, workdir, _LOCK, kind)
  if worker:
    name = f"{_LOCK}_{worker.replace('/', '_of_')}"
    _lock(locks, workdir, name, fcntl.LOCK_EX)


def _require_shared(workdir: pathlib.Path) -> None:
  """Refuses hosts that would wait for files they never see; all call.

  Raises:
    ValueError: in every process.
  """
  mark = f".seen_{uuid.uuid4().hex}"
  if jax.process_index() == 0:
    (workdir / mark).touch()
  mark = workdir / hosts.agree(mark)
  try:
    hosts.together(lambda: _require_seen(mark))
  finally:
    if jax.process_index() == 0:
      mark.unlink()


def _require_seen(mark: pathlib.Path) -> None:
  if not mark.exists():
    raise ValueError(
        f"{mark.parent}: expected a folder that all processes share, found"
        f" that process {jax.process_index()} does not see what process 0"
        " writes there; give every process the same --workdir, on a file"
        " system that all of them see."
    )


def _lock(
    locks: contextlib.ExitStack, workdir: pathlib.Path, name: str, kind: int
) -> None:
  """Locks a file until the stack is left."""
  file = locks.enter_context((workdir / name).open("a"))
  try:
    fcntl.flock(file, kind | fcntl.LOCK_NB)
  except BlockingIOError as error:
    raise ValueError(
        f"{workdir}: another command is writing to it; let it end, or choose"
        " another --workdir."
    ) from error


def round_folder(workdir: pathlib.Path, round_number: int) -> pathlib.Path:
  """Returns the folder of a round; it holds one folder per host."""
  return workdir / "rollouts" / f"round_{round_number:05d}"


def host_folder(
    workdir: pathlib.Path, round_number: int, host: int
) -> pathlib.Path:
  """Returns the shard folder that one host writes in a round."""
  return round_folder(workdir, round_number) / f"host_{host:03d}"


def require_round(members: Sequence[pathlib.Path]) -> None:
  """Refuses a round that is not whole, before it is trained on.

  Args:
    members: shard folders of one round that are there, finished or not.

  Raises:
    ValueError: naming the parts that are missing.
  """
  parts = {folder: parts_of(folder) for folder in members}
  place, counts = members[0].parent, sorted(set(parts.values()))
  if len(counts) > 1:
    raise ValueError(
        f"{place}: expected the parts of one round, found folders of rounds in"
        f" {' and '.join(map(str, counts))} parts; delete it and generate it"
        " anew."
    )
  if counts[0] is None:  # Imported: each folder is a whole.
    return
  planned = [place / f"host_{host:03d}" for host in range(counts[0])]
  missing = [path.name for path in manifest.missing_folders(planned)]
  if missing:
    raise ValueError(
        f"{place}: expected {len(planned)} finished folders, found"
        f" {len(planned) - len(missing)}; {', '.join(missing)} without"
        f" {manifest.NAME}: let `generate` end there, or run it again (of a"
        f" worker, with --worker=K/{len(planned)})."
    )


def parts_of(folder: pathlib.Path) -> int | None:
  """Returns over how many folders a round was spread; None if imported."""
  config = shards.read_metadata(folder).config
  return config["job"]["hosts"] if "job" in config else None


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
