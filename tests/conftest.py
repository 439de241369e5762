"""Shared by all tests: one CPU, one compilation cache, slow tests by name."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# Before jax is imported, so that subprocesses of tests inherit them too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache/jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
  """Leaves out slow tests unless one is named as FILE::TEST or by -m or -k."""
  named = any("::" in argument for argument in config.args)
  if named or config.option.markexpr or config.option.keyword:
    return
  slow = [item for item in items if item.get_closest_marker("slow")]
  if slow:
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
