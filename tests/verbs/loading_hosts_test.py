"""Two hosts load a model: each reads its half, and both sample the same."""

import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_each_host_reads_what_it_holds():
  with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    port = found.getsockname()[1]
  flags = {
      "PYTHONPATH": str(ROOT),
      "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
  }
  started = [
      subprocess.Popen(
          [sys.executable, ROOT / "tests/verbs/one_host_loads.py",
           str(host), str(port)],
          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
          env=os.environ | flags,
      )
      for host in range(2)
  ]
  printed = [process.communicate(timeout=600)[0] for process in started]
  for process, text in zip(started, printed):
    assert process.returncode == 0 and "loaded" in text, text[-3000:]
