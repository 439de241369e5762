"""Every family, and adapters, on eight devices are what they are on one."""

import os
import pathlib
import subprocess
import sys


def test_eight_devices():
  here = pathlib.Path(__file__)
  paths = (here.parents[2], here.parents[1] / "rollout")
  done = subprocess.run(
      [sys.executable, here.with_name("sharded_families.py")],
      capture_output=True,
      check=False,
      text=True,
      env=os.environ
      | {
          "PYTHONPATH": os.pathsep.join(map(str, paths)),
          "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
      },
  )
  assert done.returncode == 0, done.stderr[-3000:]
  assert "5 policies" in done.stdout
