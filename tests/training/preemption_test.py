"""SIGTERM outside of training, in processes of their own."""

import os
import pathlib
import subprocess
import sys

import pytest

from jaxrl_llm.training import preemption

ROOT = pathlib.Path(__file__).parents[2]
STRIKE = "os.kill(os.getpid(), signal.SIGTERM)"
IN_COLLECTOR = f"gc.callbacks.append(lambda *_: {STRIKE})\ngc.collect()"


@pytest.mark.parametrize("struck", [STRIKE, IN_COLLECTOR])
def test_a_signal_ends_the_process_wherever_it_strikes(struck):
  script = "\n".join([
      "import gc, os, signal",
      "from jaxrl_llm.training import preemption",
      "preemption.listen()",
      "print('before')",
      struck,
      "print('after')",
  ])
  done = subprocess.run(
      [sys.executable, "-c", script], capture_output=True, text=True,
      env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120,
  )
  assert done.returncode == preemption.EXIT_CODE, done.stderr
  assert done.stdout == "before\n"
  assert done.stderr.startswith("SIGTERM: what is on disk is whole")
  assert len(done.stderr.splitlines()) == 1
