"""Influence scores on eight devices are those on one."""

import os
import pathlib
import subprocess
import sys


def test_eight_devices(tmp_path):
  here = pathlib.Path(__file__)
  paths = (here.parents[2], here.parent, here.parents[1] / "training")
  done = subprocess.run(
      [sys.executable, here.with_name("sharded_scores.py"), tmp_path],
      capture_output=True,
      check=False,
      text=True,
      env=os.environ | {
          "PYTHONPATH": os.pathsep.join(map(str, paths)),
          "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
      },
  )
  assert done.returncode == 0, done.stderr[-3000:]
  assert "3 objectives" in done.stdout
