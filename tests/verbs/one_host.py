"""Runs the door as one of several hosts, maybe to be killed in an update.

python one_host.py COUNT VERB [flags]

With a COUNT above 0 the process ends by SIGKILL at its COUNT-th update.
"""

import os
import signal
import sys

from jaxrl_llm import __main__ as door
from jaxrl_llm.training import loop


def die_at(count: int):
  """Returns `loop._update`, whose count-th call ends the process."""
  update, calls = loop._update, []

  def wrapped(*arguments):
    calls.append(1)
    if len(calls) == count:
      os.kill(os.getpid(), signal.SIGKILL)
    return update(*arguments)

  return wrapped


if __name__ == "__main__":
  if int(sys.argv[1]):
    loop._update = die_at(int(sys.argv[1]))
  sys.exit(door.main(sys.argv[2:]))
