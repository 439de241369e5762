"""Runs the door as one of several hosts, maybe with a signal in an update.

python one_host.py SIGNAL COUNT VERB [flags]

With a COUNT above 0 the process gets SIGKILL or SIGTERM at its COUNT-th update.
The last line that it prints says which module read which records of rollouts,
as `READ {"module": ["folder/position", …]}`.
"""

import json
import os
import pathlib
import signal
import sys
import time

from jaxrl_llm import __main__ as door
from jaxrl_llm.data import shards
from jaxrl_llm.training import loop


# What listens for SIGTERM looks once a second.
PAUSE = 5


def struck(number: signal.Signals, count: int):
  """Returns `loop._update`, whose count-th call first sends a signal."""
  update, calls = loop._update, []

  def wrapped(*arguments):
    calls.append(1)
    if len(calls) == count:
      os.kill(os.getpid(), number)
      time.sleep(PAUSE)
    return update(*arguments)

  return wrapped


def watched(read: dict[str, list[str]]):
  """Returns `shards.Folder.__getitem__`, that says who read what."""
  get = shards.Folder.__getitem__

  def wrapped(folder, position):
    frame = sys._getframe(1)
    while "jaxrl_llm/training" not in frame.f_code.co_filename:
      frame = frame.f_back
    module = pathlib.Path(frame.f_code.co_filename).stem
    read.setdefault(module, []).append(f"{folder.path.name}/{position}")
    return get(folder, position)

  return wrapped


if __name__ == "__main__":
  found = {}
  shards.Folder.__getitem__ = watched(found)
  if int(sys.argv[2]):
    loop._update = struck(signal.Signals[sys.argv[1]], int(sys.argv[2]))
  code = door.main(sys.argv[3:])
  print("READ", json.dumps(found))
  sys.exit(code)
