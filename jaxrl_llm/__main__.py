"""The one door: python -m jaxrl_llm VERB --config=FILE [--config.key=value].

Reads the flags and imports the verb; jax is imported only by verbs that
compute, so help comes at once.
"""

import errno
import importlib
import linecache
import os
import pathlib
import sys
import traceback

from jaxrl_llm.verbs import keys
from jaxrl_llm.verbs import manual

PACKAGE = pathlib.Path(__file__).parent
# What the user can mend: the message alone is shown.
USER_ERROR = 2
# Lets big arrays lie in big pages, where Linux has them: a step takes and frees
# gigabytes, and in pages of 4 KiB that is up to a third of its time on CPUs.
# glibc reads the variable when a program starts, and only then.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
# Of a disk that is full or may not be written to.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def main(arguments: list[str]) -> int:
  """Runs one verb; returns the exit code."""
  if not arguments or arguments[0] in ("-h", "--help", "help"):
    print(manual.overview())
    return 0
  verb, arguments = arguments[0], arguments[1:]
  debug = "--debug" in arguments
  try:
    if verb not in manual.VERBS:
      raise ValueError(
          f"{verb!r} is no verb; the nearest one is"
          f" {keys.nearest(verb, manual.VERBS)!r}, and python -m jaxrl_llm"
          " lists them all."
      )
    if "--help" in arguments or "-h" in arguments:
      print(manual.verb_help(verb))
      return 0
    return _dispatch(verb, [item for item in arguments if item != "--debug"])
  except KeyboardInterrupt:
    print("Interrupted; the same command resumes.", file=sys.stderr)
    return 130
  except BrokenPipeError:  # As by `… | head`: no one reads on.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  except Exception as error:
    if debug or not is_user_error(error):
      raise
    message = " ".join(str(error).split())
    print(f"jaxrl_llm {verb}: error: {message}", file=sys.stderr)
    return USER_ERROR


def is_user_error(error: Exception) -> bool:
  """True for a missing file, a disk, and what this project raised for the user.

  An error out of a library, or out of an operation that failed, is a defect
  and keeps its traceback. One that stems from a `raise` statement of the
  package or of a config file was worded for the user.
  """
  if isinstance(error, (FileNotFoundError, NotADirectoryError)):
    return True
  if isinstance(error, OSError) and error.errno in _DISK:
    return True
  if not isinstance(
      error, (ValueError, OSError, ArithmeticError, ImportError)
  ):
    return False
  frame = traceback.extract_tb(error.__traceback__)[-1]
  statement = linecache.getline(frame.filename, frame.lineno).strip()
  folders = (PACKAGE, keys.BASE_FILE.parent)
  ours = any(
      folder in pathlib.Path(frame.filename).resolve().parents
      for folder in folders
  )
  return ours and statement.startswith("raise")


def _dispatch(verb: str, arguments: list[str]) -> int:
  """Parses the flags of a verb and calls it."""
  from jaxrl_llm.verbs import flags  # Imports ml_collections: not for help.

  config, workdir = flags.parse(verb, arguments)
  if workdir is not None:
    # Read by jax when it is first imported, which a verb's import does.
    cache = workdir / "compilation_cache"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
  if config is None or "distributed" not in manual.sections(verb):
    return _call(verb, config, workdir)
  from jaxrl_llm.training import preemption
  from jaxrl_llm.verbs import distributed

  with distributed.start(config):
    preemption.listen()
    return _call(verb, config, workdir)


def _call(verb: str, config, workdir) -> int:
  """Imports a verb and calls it."""
  name = f"jaxrl_llm.verbs.{manual.module(verb)}"
  return importlib.import_module(name).main(config, workdir) or 0


def _take_huge_pages() -> None:
  """Starts this program anew with _HUGE_PAGES, unless that is settled."""
  tunables = os.environ.get("GLIBC_TUNABLES", "")
  if sys.platform == "linux" and "malloc.hugetlb" not in tunables:
    joined = ":".join(filter(None, (tunables, _HUGE_PAGES)))
    os.environ["GLIBC_TUNABLES"] = joined
    os.execv(sys.executable, sys.orig_argv)


if __name__ == "__main__":
  _take_huge_pages()
  sys.exit(main(sys.argv[1:]))
