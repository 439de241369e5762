"""Charts: what they draw and say of a run that is known by heart."""

import dataclasses
import io

import made_run
import numpy as np
from PIL import Image
import pytest

from jaxrl_llm.lab import charts
from jaxrl_llm.lab import figures
from jaxrl_llm.lab import heat
from jaxrl_llm.lab import sections

CHARTS = {
    chart.name: chart for section in sections.ALL for chart in section.charts
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp("charts") / "run"
  return made_run.read(made_run.whole(folder))


def pixels(image: bytes) -> np.ndarray:
  return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_draws_and_speaks(run, name):
  image = pixels(figures.render(CHARTS[name], [run]))
  assert image.std() > 5
  assert any(letter.isdigit() for letter in CHARTS[name].latest(run))


def test_same_run_gives_the_same_bytes(run):
  chart = CHARTS["position_log_ratio"]
  assert figures.render(chart, [run]) == figures.render(chart, [run])


@pytest.mark.parametrize("count,columns,lines", [(2, 2, 1), (4, 3, 2)])
def test_runs_lie_side_by_side(run, count, columns, lines):
  one = pixels(figures.render(CHARTS["clip"], [run, run]))
  height, width, _ = pixels(figures.render(CHARTS["clip"], [run] * count)).shape
  assert height == lines * one.shape[0]
  np.testing.assert_allclose(width, columns * one.shape[1] / 2, atol=2)


@pytest.mark.parametrize("rewards", [[0.5], [None, 0.5], [0.2, 0.4]])
def test_few_rewards_are_drawn(tmp_path, rewards):
  """One round, or one with a verdict."""
  run = made_run.read(made_run.whole(tmp_path / "run", len(rewards)))
  batches = run.of_kind("batch")
  for record, reward in zip(batches, rewards, strict=True):
    record["reward"] = reward
  assert not CHARTS["reward"].missing(run)
  assert figures.render(CHARTS["reward"], [run])


def test_run_without_a_verdict_has_no_reward(tmp_path):
  run = made_run.read(made_run.whole(tmp_path / "run"))
  for record in run.of_kind("batch"):
    record["reward"] = None
  assert "has a verdict" in CHARTS["reward"].missing(run)


def test_series_leaves_out_what_is_no_number():
  records = [
      {"step": 1, "x": 2.0}, {"step": 2, "x": None}, {"step": 3},
      {"step": 4, "x": float("nan")}, {"step": 5, "x": 0.0},
  ]
  assert charts.series(records, "x") == ([1, 5], [2.0, 0.0])


def test_groups_and_records_by_hand(run):
  """Of 4 groups 1 has none right, 2 some, 1 all; 6 of 8 records are used."""
  assert CHARTS["groups"].latest(run) == (
      "in round 1: all right 25%, some right 50%, none right 25%"
  )
  assert CHARTS["used"].latest(run) == (
      "in round 1: trained on 75%, uniform 25%"
  )
  assert CHARTS["allocation"].latest(run) == (
      "in round 1: 3 prompts, 8 responses, 2 to 4 each"
  )


def test_drops_of_a_round_count_once_over_its_batches(run):
  doubled = [*run.metrics, *run.of_kind("batch")]
  counts = CHARTS["used"].counts(_with(run, doubled))
  assert counts[0] == {"trained on": 12, "uniform": 2}


def test_table_lays_records_of_other_buckets_side_by_side():
  """[0, 2) of the first record is [0, 1) and [1, 2) of the second."""
  records = [
      {"step": 3, "edges": [0, 2, 4, 8], "x": [1.0, 2.0, None]},
      {"step": 5, "edges": [0, 1, 2, 4], "x": [5.0, None, 7.0]},
      {"step": 6, "edges": [0, 1], "y": [5.0]},
  ]
  found = heat.table(records, "x")
  np.testing.assert_array_equal(
      found.values, [[1.0, 5.0], [1.0, np.nan], [2.0, 7.0]]
  )
  assert found.steps.tolist() == [3, 5]
  assert found.labels == ["0", "1", "2–3"]


def test_colours_have_one_scale_over_runs(run):
  """±0.3 × 4 of the newest update, both ways from 0."""
  chart = CHARTS["position_log_ratio"]
  np.testing.assert_allclose(chart.limits([run, run]), (-1.2, 1.2))
  assert CHARTS["position_clip"].limits([run]) == (0, 1)


def test_only_cells_below_zero_are_hatched(run):
  """Left negative, right positive and as good as 0; too many for numbers."""
  chart = CHARTS["position_log_ratio"]
  records = [
      {"step": step, "kind": "positions", "edges": [0, 1],
       "log_ratio/mean": [-1.0 if step < 50 else 1.0 if step < 75 else -1e-9]}
      for step in range(100)
  ]
  image = pixels(figures.render(chart, [_with(run, records)])).astype(float)
  row = image[image.shape[0] // 3, :, :].sum(-1)
  plot = row[int(0.12 * len(row)) : int(0.82 * len(row))]
  left, right = np.array_split(plot, 2)
  assert left[20:-20].std() > 5
  # Two flat colours: a step between them, no stripes.
  assert len(np.unique(right[20:])) <= 4


def test_bounds_belong_to_one_ratio(run):
  """ppo bounds the ratio of tokens: a dashed line more in that profile."""
  assert run.ratio == "token"
  drawn = {}
  for name in ("position_token_profile", "position_cumulative_profile"):
    image = pixels(figures.render(CHARTS[name], [run]))
    color = np.array([0xD5, 0x5E, 0x00])
    drawn[name] = np.sum(np.abs(image.astype(int) - color).sum(-1) < 20)
  assert drawn["position_token_profile"] > 50
  assert drawn["position_cumulative_profile"] == 0


def test_a_record_without_the_quantity_leaves_the_profile_as_it_was(run):
  chart = CHARTS["position_token_profile"]
  bare = {"kind": heat.KIND, "step": 99, "round": 1}
  longer = _with(run, (*run.metrics, bare))
  assert figures.render(chart, [longer]) == figures.render(chart, [run])


def _with(run, records):
  return dataclasses.replace(run, metrics=records)
