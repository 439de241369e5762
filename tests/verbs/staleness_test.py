"""The staleness verb: cells, resuming, refusals, and no ranking of one seed."""

import json

import frozen_rounds
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.rollout import rewards
from jaxrl_llm.training import loop
from jaxrl_llm.training import metrics
from jaxrl_llm.verbs import staleness
from jaxrl_llm.verbs import versions

FILE = frozen_rounds.FILES["ppo"]
KEYS = {
    "train.epochs": 1,
    "evaluation.samples": 2,
    "evaluation.pass_at": "1",
    "lab.objectives": "ppo,topr=topr:kl_coefficient=0.1",
    "lab.correction": "bypass",
    "lab.lags": "(0,1)",
    "lab.seeds": "(0,1)",
}


@pytest.fixture(autouse=True)
def easy(monkeypatch):
  """A response is right where its first byte is even: half of them."""

  def verify(response, prompt):
    del prompt
    first = response.encode()[:1] or b"\1"
    return rewards.Verdict(float(first[0] % 2 == 0), response, False)

  monkeypatch.setattr(rewards, "verify_last_number", verify)


def call(workdir, **keys) -> int:
  """Runs the verb in this process; keys have __ for a dot."""
  changed = {name.replace("__", "."): value for name, value in keys.items()}
  words = frozen_rounds.words(FILE, KEYS | changed)
  return door.main(["staleness", *words, f"--workdir={workdir}"])


def read(workdir):
  return json.loads((workdir / staleness.RESULT).read_text())


def test_study_and_resuming(tmp_path, monkeypatch, capsys):
  """Killed in a cell, the study goes on to the numbers of an undisturbed one.

  The lag of a cell shows in its first ratios, and the cells of one seed start
  from one policy.
  """
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  assert call(whole) == 0
  shown = capsys.readouterr().out
  found = read(whole)
  cells = {(c["label"], c["lag"], c["seed"]): c for c in found["cells"]}
  assert len(cells) == 8
  for (_, lag, _), cell in cells.items():
    assert cell["version_lag"] == 2 * lag and cell["updates"] == 2
    drifted = abs(cell["first/tv"]) > 1e-5
    assert drifted == bool(lag)
    assert cell["positions"]["edges"][:3] == [0, 1, 2]
  assert "lag 0, by held-out reward" in shown
  assert "lag in rounds (updates): 0 (0), 1 (2)" in shown
  assert (whole / staleness.PICTURE).is_file()
  place = whole / "cells/ppo/lag_1/seed_0"
  file, = place.glob("evaluations/*/results.json")
  measured = json.loads(file.read_text())["metrics"]["exact_match"]["value"]
  assert cells["ppo", 1, 0]["reward"] == pytest.approx(measured)
  gain = measured - found["before"]["0"]
  assert cells["ppo", 1, 0]["gain"] == pytest.approx(gain)
  assert not (place / "checkpoints").exists()
  lines = metrics.read(place / "metrics.jsonl")
  wanted = [l for l in lines if l["kind"] == "update"][-1]["tv/behavior"]
  assert cells["ppo", 1, 0]["last/tv"] == pytest.approx(wanted)

  train, calls = loop._update, []

  def update_or_die(*given):
    calls.append(1)
    if len(calls) == 2 * 2 + 2 * 2 + 1:  # Two runs, two cells, half a cell.
      raise KeyboardInterrupt
    return train(*given)

  monkeypatch.setattr(loop, "_update", update_or_die)
  assert call(killed) == 130
  kept = sorted(killed.glob("cells/**/cell.json"))
  times = [path.stat().st_mtime_ns for path in kept]
  assert len(kept) == 2 and not (killed / staleness.RESULT).exists()
  assert call(killed) == 0
  assert [path.stat().st_mtime_ns for path in kept] == times
  assert read(killed) == found


def test_one_seed_on_a_run_that_is_there(tmp_path, capsys):
  """It draws, and declines to rank; the run's own round is lag 0."""
  run = frozen_rounds.words(FILE, KEYS | {"run.rounds": 1})
  there = tmp_path / "run"
  assert door.main(["run", *run, f"--workdir={there}"]) == 0
  given = {
      "lab__versions": there, "lab__seeds": "(0,)", "lab__objectives": "ppo",
  }
  capsys.readouterr()
  assert call(tmp_path / "early", **given) == door.USER_ERROR
  assert "lag 0 needs the shards of round 1" in capsys.readouterr().err
  assert door.main(["generate", *run, f"--workdir={there}"]) == 0
  assert call(tmp_path / "study", **given) == 0
  assert "no ranking: one seed" in capsys.readouterr().out
  assert len(read(tmp_path / "study")["cells"]) == 2


MISTAKES = {
    "name": ({"lab__objectives": "gpso"}, "the nearest is 'gspo'"),
    "critic": ({"lab__objectives": "vapo"}, "a critic"),
    "greedy": ({"lab__objectives": "remax"}, "set objective.name=remax"),
    "topk": ({"lab__objectives": "sis"}, "sampling.record_topk=0; raise it"),
    "lags": ({"lab__lags": "(2,1)"}, "lab.lags: expected numbers of rounds"),
    "lag of nothing": ({"lab__lags": "(0,)"}, "expected a lag above 0"),
    "half a lag": ({"lab__lags": "(0,1.5)"}, "lab.lags: expected numbers"),
    "no seed": ({"lab__seeds": "(0,'a')"}, "lab.seeds: expected"),
    "seeds": ({"lab__seeds": "(1,1)"}, "lab.seeds: expected"),
    "versions": ({"lab__versions": "a"}, "for each of 2 seeds"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_gives_one_line(name, tmp_path, capsys):
  changes, expected = MISTAKES[name]
  assert call(tmp_path, **changes) == door.USER_ERROR
  text = capsys.readouterr().err
  assert expected in text and text.count("\n") == 1
  assert not (tmp_path / "config.json").exists()
