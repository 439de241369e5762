"""The losses over rows on eight devices are those on one."""

import os
import pathlib
import subprocess
import sys

from jaxrl_llm.losses import algorithms


def test_eight_devices():
  here = pathlib.Path(__file__)
  paths = (here.parents[2], here.parent)
  done = subprocess.run(
      [sys.executable, here.with_name("sharded_losses.py")],
      capture_output=True,
      check=False,
      text=True,
      env=os.environ | {
          "PYTHONPATH": os.pathsep.join(map(str, paths)),
          "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
      },
  )
  assert done.returncode == 0, done.stderr[-3000:]
  assert f"{len(algorithms.REGISTRY)} algorithms" in done.stdout
