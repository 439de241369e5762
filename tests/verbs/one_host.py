"""Runs the door as one of several hosts, maybe with a signal in an update.

python one_host.py SIGNAL COUNT VERB [flags]

With a COUNT above 0 the process gets SIGKILL or SIGTERM at its COUNT-th update.
"""

import os
import signal
import sys
import time

from jaxrl_llm import __main__ as door
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


if __name__ == "__main__":
  if int(sys.argv[2]):
    loop._update = struck(signal.Signals[sys.argv[1]], int(sys.argv[2]))
  sys.exit(door.main(sys.argv[3:]))
