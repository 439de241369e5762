"""Weights are laid over eight devices without any holding the whole."""

import os
import pathlib
import subprocess
import sys


def test_eight_devices(tmp_path):
  here = pathlib.Path(__file__)
  flags = "--xla_force_host_platform_device_count=8"
  done = subprocess.run(
      [sys.executable, here.with_name("sharded_loading.py"), tmp_path],
      capture_output=True,
      check=False,
      text=True,
      env=os.environ
      | {"PYTHONPATH": str(here.parents[2]), "XLA_FLAGS": flags},
  )
  assert done.returncode == 0, done.stderr[-3000:]
  assert "3 meshes" in done.stdout
