"""The verb compile, on a small slice; needs libtpu."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# A wheel of 170 MB, 680 MB on disk, half of all that the tests install: too
# much for these tests. What a mesh implies is tested on CPUs as well.
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler for TPUs, is not installed",
)
SMALL = (
    "--config=configs/tiny.py",
    "--topology=v5e:2x2",
    "--config.mesh=fsdp=2,tensor=2",
)


def compile_(*arguments):
  return subprocess.run(
      [sys.executable, "-m", "jaxrl_llm", "compile", *SMALL, *arguments],
      cwd=ROOT, capture_output=True, text=True, timeout=1200,
      env=os.environ | {"JAX_PLATFORMS": "cpu"},
  )


@needs_compiler
def test_all_programs_of_a_small_job_compile_and_fit():
  done = compile_()
  assert done.returncode == 0, done.stderr[-2000:]
  for name in ("add", "update", "weights", "prefill", "fill", "decode"):
    assert re.search(rf"^{name} .*\d  fits$", done.stdout, re.MULTILINE), name
  assert "tokens/s" in done.stdout


@needs_compiler
def test_sampling_holds_weights_and_cache_once():
  done = subprocess.run(
      [sys.executable, "-m", "jaxrl_llm", "compile",
       "--config=configs/slices/v5e_64.py",
       "--config.compile.programs=weights,fill,decode"],
      cwd=ROOT, capture_output=True, text=True, timeout=1200,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  held = re.findall(
      r"^(\w+) +([\d.]+) +([\d.]+) .*fits$", done.stdout, re.MULTILINE
  )
  arguments, temporaries = (
      {row[0]: float(row[n]) for row in held} for n in (1, 2)
  )
  assert arguments["decode"] > 8  # GiB: weights over tensor=2, and the cache.
  assert temporaries["weights"] < 2 and temporaries["fill"] < 2
  assert temporaries["decode"] < 1


@needs_compiler
def test_a_slice_exchanges_what_its_mesh_implies():
  done = subprocess.run(
      [sys.executable, ROOT / "tests/slices/sharded_steps.py", "v5e:2x4"],
      cwd=ROOT, capture_output=True, text=True, timeout=1200,
      env=os.environ | {
          "JAX_PLATFORMS": "cpu",
          "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
      },
  )
  assert done.returncode == 0, done.stderr[-2000:]


@needs_compiler
def test_what_does_not_fit_is_said_with_a_remedy():
  done = compile_(
      "--config.model.preset=qwen3-8b", "--config.compile.programs=update"
  )
  assert done.returncode == 1, done.stderr[-2000:]
  # 16 bytes of state per parameter on four chips: 30.5 GiB.
  assert "update does not fit" in done.stdout
  assert re.search(r"take a slice of \d+ or more", done.stdout), done.stdout


def test_a_program_that_is_none_is_refused():
  done = compile_("--config.compile.programs=add,adds")
  assert done.returncode == 2
  assert "compile.programs" in done.stderr and "'adds'" in done.stderr


def test_a_critic_that_the_objective_lacks_is_refused():
  done = compile_("--config.compile.programs=add,critic_add")
  assert done.returncode == 2
  assert "compile.programs" in done.stderr and "'critic_add'" in done.stderr


@needs_compiler
def test_a_critic_is_compiled_where_there_is_one():
  done = compile_(
      "--config.objective.name=ppo", "--config.objective.advantage=gae",
      "--config.compile.programs=critic_values,critic_add,critic_update",
  )
  assert done.returncode == 0, done.stderr[-2000:]
  for name in ("critic_values", "critic_add", "critic_update"):
    assert re.search(rf"^{name} .*\d  fits$", done.stdout, re.MULTILINE), name


def test_weights_are_never_read():
  done = compile_("--config.model.path=somewhere")
  assert done.returncode == 2
  assert "model.path" in done.stderr
