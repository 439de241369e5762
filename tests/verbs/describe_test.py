"""The describe verb, and what the run verb says before it starts."""

import pathlib
import sys

import pytest

from configs import base
from jaxrl_llm import __main__ as door
from jaxrl_llm.losses import algorithms
from jaxrl_llm.verbs import run

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = f"--config={ROOT / 'configs/base.py'}"


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


def test_the_curation_is_described(capsys):
  arguments = ["describe", CONFIG, "--config.curation.name=ps_ppo"]
  full = "--config.curation.full_probability"
  assert door.main([*arguments, f"{full}=0.7"]) == 0
  shown = capsys.readouterr().out
  assert "curation: ps_ppo" in shown and "full_probability 0.7" in shown
  assert "cppo_completion" in shown
  for section in ("objective", "allocation", "curation"):
    assert f"What --config.{section}.name may be:" in shown
  assert door.main([*arguments, f"{full}="]) == 0
  assert "full_probability 0.4" in capsys.readouterr().out
  assert door.main([*arguments, "--config.curation.name="]) == 0
  assert "curation: none" in capsys.readouterr().out


@pytest.mark.parametrize("name, words", [
    ("sis", "the proximal policy's top 100 from that pass"),
    ("remax", "one greedy response per prompt"),
    ("acpo_adaptive", "a gradient-free pass over each mini-batch"),
    ("grpo", "groups of two or more responses"),
    ("dpo", "a reference policy"),
])
def test_needs_are_said(name, words, capsys):
  door.main(["describe", CONFIG, f"--config.objective.name={name}"])
  shown = capsys.readouterr().out
  line = next(x for x in shown.splitlines() if x.startswith("needs "))
  assert words in line


def test_a_key_that_the_file_sets_can_be_unset(capsys):
  path = pathlib.Path(__file__).parents[2] / "configs/quickstart.py"
  quickstart = ["describe", f"--config={path}"]
  grpo = [*quickstart, "--config.objective.name=grpo"]
  assert door.main(grpo) == 2
  assert "--config.objective.log_clip_high= ." in capsys.readouterr().err
  unset = [f"--config.objective.log_clip_{end}=" for end in ("low", "high")]
  assert door.main([*grpo, *unset]) == 0
  assert "grpo" in capsys.readouterr().out
  assert door.main([*quickstart, *unset]) == 0
  assert "> 0.05 t^0.5" in capsys.readouterr().out


@pytest.mark.parametrize("body, message", [
    ("x = 1", "it has no function get_config"),
    (
        "from configs import base\ndef get_config():\n"
        "  config = base.get_config()\n  config.train.epochs = 'four'\n",
        "Could not override field 'epochs'",
    ),
])
def test_errors_of_an_own_file_are_one_line(
    tmp_path, capsys, monkeypatch, body, message
):
  # A process reads one file; this one has read others under the same name.
  monkeypatch.delitem(sys.modules, "config_config", raising=False)
  path = tmp_path / "mine.py"
  path.write_text(body)
  assert door.main(["describe", f"--config={path}"]) == 2
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1 and f"--config={path}: " in lines[0]
  assert message in lines[0]


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


def test_a_critic_is_described_and_its_keys_are_checked(capsys):
  path = f"--config={ROOT / 'configs/objectives/vcppo.py'}"
  assert door.main(["describe", path]) == 0
  assert "critic: kind network, epochs 1, pretrain_rounds 2\n" in (
      capsys.readouterr().out
  )
  assert door.main(["describe", path, "--config.critic.epochs=0"]) == (
      door.USER_ERROR
  )
  assert "critic.epochs: expected at least 1" in capsys.readouterr().err
