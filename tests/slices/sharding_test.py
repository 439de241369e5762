"""What compiled steps exchange on a mesh, in a process with eight devices."""

import os
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parent / "sharded_steps.py"


def test_compiled_steps_exchange_what_the_mesh_implies():
  flags = os.environ.get("XLA_FLAGS", "")
  environment = os.environ | {
      "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8",
      "JAX_PLATFORMS": "cpu",
      "PYTHONPATH": os.pathsep.join(sys.path),
  }
  done = subprocess.run(
      [sys.executable, SCRIPT], env=environment, capture_output=True,
      text=True, timeout=1200,
  )
  assert done.returncode == 0, done.stderr[-2000:]
