"""Numbers of cells, their spread over seeds, and what a ranking may say."""

import math

import pytest
from scipy import stats

from jaxrl_llm.lab import curves
from jaxrl_llm.lab import staleness


def make_cells(rewards, lag=4, **numbers):
  """Cells of one lag from {label: rewards by seed}."""
  return [
      {
          "label": label, "lag": lag, "seed": seed, "reward": value,
          "gain": value - 0.1, "mean/kl": None, **numbers,
      }
      for label, row in rewards.items()
      for seed, value in enumerate(row)
  ]


def make_study(cells, seeds):
  return {
      "lags": [4], "seeds": seeds, "before": {str(s): 0.1 for s in seeds},
      "version_lags": ["8–12"], "cells": cells,
      "summary": staleness.summary(cells), "not_compared": {"vapo": "why"},
  }


def test_numbers_of_the_first_and_the_last_update_and_their_mean():
  def update(kl, low, high):
    return {
        "kind": "update", "kl/behavior_k3": kl, "clip": 0.5,
        "log_ratio/behavior/q01": low, "log_ratio/behavior/q99": high,
    }

  records = [
      {"kind": "batch", "reward": 1.0},
      update(0.1, -0.1, 0.3),
      {"kind": "positions", "edges": [0, 1]},
      update(0.2, -0.5, 0.3),
      {"kind": "positions", "edges": [0, 2]},
      update(None, None, 0.3),
  ]
  found = staleness.numbers(records)
  assert found["updates"] == 3
  assert (found["first/kl"], found["last/kl"]) == (0.1, None)
  assert found["mean/kl"] == pytest.approx(0.15)
  assert found["first/spread"] == pytest.approx(0.4)
  assert found["mean/spread"] == pytest.approx(0.6)
  assert found["mean/ess"] is None and found["mean/clip"] == 0.5
  assert found["positions"] == {"kind": "positions", "edges": [0, 2]}
  assert staleness.numbers(records[:1]) == {"updates": 0, "positions": None}


def test_summary():
  """Of 0.2 and 0.6: mean 0.4, standard deviation 0.4/√2."""
  row, = staleness.summary(make_cells({"ppo": [0.2, 0.6]}))
  assert (row["label"], row["lag"], row["seeds"]) == ("ppo", 4, 2)
  assert row["reward"] == pytest.approx(
      {"mean": 0.4, "std": 0.4 / math.sqrt(2), "low": 0.2, "high": 0.6}
  )
  assert row["mean/kl"] is None
  row, = staleness.summary(make_cells({"ppo": [0.2]}))
  assert row["reward"]["std"] is None


@pytest.mark.parametrize("gaps", [[0.1, 0.3], [-0.2, 0.1, 0.5, 0.2]])
def test_p_is_that_of_a_paired_t_test(gaps):
  wanted = stats.ttest_1samp(gaps, 0.0).pvalue
  assert staleness.paired_p(gaps) == pytest.approx(wanted, rel=1e-4)


def test_p_without_spread():
  assert staleness.paired_p([0.0, 0.0]) == 1.0
  assert staleness.paired_p([0.5, 0.5]) == 0.0


def test_ranking_pairs_the_seeds_and_counts_the_comparisons():
  """Gaps of b −0.2 ± 0.01: p small; those of c scatter around −0.05."""
  rewards = {
      "c": [0.50, 0.75, 0.60], "b": [0.40, 0.51, 0.60], "a": [0.6, 0.7, 0.8]
  }
  found = staleness.ranking(make_cells(rewards), 4)
  assert [one.label for one in found] == ["a", "c", "b"]
  assert not found[0].apart and math.isnan(found[0].p)
  assert found[2].gap == pytest.approx(-0.59 / 3)
  single = stats.ttest_rel(rewards["b"], rewards["a"]).pvalue
  assert found[2].p == pytest.approx(2 * single, rel=1e-4)
  assert found[2].apart and not found[1].apart


def test_one_seed_or_one_objective_has_no_ranking():
  assert staleness.ranking(make_cells({"a": [0.1], "b": [0.9]}), 4) is None
  assert staleness.ranking(make_cells({"a": [0.1, 0.2]}), 4) is None
  study = make_study(make_cells({"a": [0.1], "b": [0.9]}), [0])
  shown = curves.text(study)
  assert "lag 4: no ranking: one seed" in shown
  assert "told apart" not in shown and "within the noise" not in shown


def test_text_and_picture(tmp_path):
  rewards = {"a": [0.1, 0.3], "b": [0.9, 0.7]}
  study = make_study(make_cells(rewards), [0, 1])
  shown = curves.text(study)
  assert "2 objectives × 1 lags × 2 seeds" in shown
  assert "4 (8–12)" in shown
  assert "0.2000 ± 0.1414" in shown and "0.8000 ± 0.1414" in shown
  # Gaps −0.8 and −0.4: t = −3 at ν = 1, p = 0.205.
  assert "gap -0.6000, p 0.205: within the noise" in shown
  assert shown.index("  b  ") < shown.index("  a  ", shown.index("  b  "))
  assert "not compared: vapo: why" in shown
  path = curves.draw(study, tmp_path / "curves.png")
  assert path.read_bytes().startswith(b"\x89PNG")
  assert list(tmp_path.iterdir()) == [path]


def test_a_picture_that_fails_leaves_the_one_that_is_there(
    tmp_path, monkeypatch
):
  path = tmp_path / "curves.png"
  path.write_bytes(b"before")

  def fail(beside, name):
    raise OSError(f"{name}: disk full")

  monkeypatch.setattr(curves.atomic, "publish", fail)
  study = make_study(make_cells({"a": [0.1], "b": [0.9]}), [0])
  with pytest.raises(OSError, match="disk full"):
    curves.draw(study, path)
  assert path.read_bytes() == b"before"


@pytest.mark.parametrize("lags", [(), (-1, 2), (0, 2, 2), (3, 1), (0, 1.5)])
def test_lags_are_checked(lags):
  with pytest.raises(ValueError, match="^lab.lags: "):
    staleness.check(lags, (0,))


@pytest.mark.parametrize("seeds", [(), (1, 1), ("a",), (0, 2**63)])
def test_seeds_are_checked(seeds):
  with pytest.raises(ValueError, match="^lab.seeds: "):
    staleness.check((0,), seeds)
