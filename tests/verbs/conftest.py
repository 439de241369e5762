"""Shards that several files of tests train on."""

import pathlib

import exchanged
import frozen_rounds
import pytest


@pytest.fixture(scope="session")
def donor(tmp_path_factory) -> pathlib.Path:
  """The rollouts/ folder of frozen_rounds, made once."""
  return frozen_rounds.generate(tmp_path_factory.mktemp("donor"))


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> pathlib.Path:
  """The working directory of exchanged.generate, made once."""
  return exchanged.generate(tmp_path_factory.mktemp("source"))
