"""Writes a folder of four shards and may kill itself on the way.

  python killed_writer.py FOLDER MOMENT

MOMENT is "never", or a count and "renaming" or "describing": at the count-th
time a file is about to get its final name, or when the manifest is due, the
process ends by SIGKILL.
"""

import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# pylint: disable=g-import-not-at-top,wrong-import-position
import conftest
from jaxrl_llm.data import atomic
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards


def _die_after(function, calls):
  remaining = [calls]

  def wrapped(*arguments):
    remaining[0] -= 1
    if not remaining[0]:
      os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)

  return wrapped


def main(folder: str, count: str, moment: str) -> None:
  if moment == "renaming":
    atomic.publish = _die_after(atomic.publish, int(count))
  if moment == "describing":
    schema.describe = _die_after(schema.describe, int(count))
  writer = shards.ShardWriter(folder, conftest.make_metadata(), 4)
  print("missing", writer.missing(), flush=True)
  for index in writer.missing():
    numbers = range(index * 8, index * 8 + 8)
    writer.write(index, [conftest.make_rollout(number) for number in numbers])
  writer.finish()
  assert "tensorflow" not in sys.modules


if __name__ == "__main__":
  main(*sys.argv[1:])
