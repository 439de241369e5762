"""Frees what each file of tests compiled."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _compiled_once_per_file():
  yield
  jax.clear_caches()
