"""The describe verb, and what the run verb says before it starts."""

import pathlib

import pytest

from configs import base
from jaxrl_llm import __main__ as door
from jaxrl_llm.losses import algorithms
from jaxrl_llm.verbs import run

CONFIG = f"--config={pathlib.Path(__file__).parents[2] / 'configs/base.py'}"


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_every_registered_name_is_described(name, capsys):
  """A name that is registered can be built."""
  assert door.main(["describe", CONFIG, f"--config.objective.name={name}"]) == 0
  shown = capsys.readouterr().out
  assert name in shown and "loss" in shown and "advantage" in shown


def test_a_number_from_the_command_line_is_in_the_formula(capsys):
  arguments = ["describe", CONFIG, "--config.objective.name=ppo"]
  door.main(arguments)
  before = capsys.readouterr().out
  door.main([*arguments, "--config.objective.clip_high=0.37"])
  after = capsys.readouterr().out
  assert "1.37" in after and "1.37" not in before


def test_the_allocation_is_described(capsys):
  arguments = ["describe", CONFIG, "--config.allocation.name=cero"]
  assert door.main([*arguments, "--config.allocation.curvature=2.5"]) == 0
  shown = capsys.readouterr().out
  assert "allocation: cero" in shown and "curvature 2.5" in shown
  assert "reinforce_ada" in shown


def test_a_misspelt_name_gets_the_nearest(capsys):
  assert door.main(["describe", CONFIG, "--config.objective.name=grop"]) == 2
  assert "grpo" in capsys.readouterr().err


def test_the_arithmetic_of_a_round():
  """16 × 8 = 128 responses; 10 of 16 groups: 2 epochs × ⌈10 / 4⌉ updates."""
  config = base.get_config()
  config.train.groups_per_batch = 10
  config.train.groups_per_minibatch = 4
  line = run.arithmetic(config)
  assert "= 128 responses" in line and "at most 6 updates" in line
  assert "5 updates off-policy" in line
