"""What is read of a working directory, and what is said of what is missing."""

import json
import shutil

import made_run
import numpy as np
import pytest

from jaxrl_llm.lab import report
from jaxrl_llm.lab import rollouts
from jaxrl_llm.lab import sections
from jaxrl_llm.lab import workdir


@pytest.fixture(scope="module")
def template(tmp_path_factory):
  return made_run.whole(tmp_path_factory.mktemp("template") / "run")


@pytest.fixture
def folder(template, tmp_path):
  return shutil.copytree(template, tmp_path / "run")


def reasons(run: workdir.Run) -> dict[str, str]:
  """Returns what each chart says of what is missing."""
  charts = [chart for section in sections.ALL for chart in section.charts]
  return {chart.name: chart.missing(run) for chart in charts}


def test_whole_run_misses_nothing(folder):
  run = made_run.read(folder)
  assert not run.missing and not run.notes
  assert set(reasons(run).values()) == {""}
  assert list(run.evaluations) == ["after 0 updates", "after 4 updates"]
  assert run.plans == {0: [4, 2, 2], 1: [4, 2, 2]}


def test_nothing_at_all_is_explained_source_by_source(tmp_path):
  run = made_run.read(tmp_path)
  assert set(run.missing) == {
      "config", "metrics", "evaluations", "feedback", "plans", "rollouts"
  }
  assert all(reasons(run).values())
  assert "nothing was generated here" in run.missing["metrics"]
  assert not (tmp_path / "report").exists()


def test_generated_and_never_trained(folder):
  for name in ("metrics.jsonl", "feedback", "prepared"):
    path = folder / name
    path.unlink() if path.is_file() else shutil.rmtree(path)
  run = made_run.read(folder)
  assert "2 rounds were generated, none was trained on" in (
      run.missing["metrics"]
  )
  said = reasons(run)
  assert not said["lengths"] and not said["allocation"]
  assert "trained on to its end" in said["groups"]


def test_killed_before_the_first_update(folder):
  path = folder / "metrics.jsonl"
  path.write_text(path.read_text().splitlines()[0] + "\n")
  shutil.rmtree(folder / "feedback")
  said = reasons(made_run.read(folder))
  assert "before its first update" in said["ratios"]
  assert "before its first update" in said["position_clip"]
  assert not said["reward"]


def test_rounds_that_taught_nothing_are_no_kill(folder):
  path = folder / "metrics.jsonl"
  path.write_text(path.read_text().splitlines()[0] + "\n")
  assert "taught the policy nothing" in reasons(made_run.read(folder))["ratios"]


def test_quantities_that_a_run_does_not_have(folder):
  path = folder / "metrics.jsonl"
  records = [json.loads(line) for line in path.read_text().splitlines()]
  kept = []
  for record in records:
    record.pop("budget", None)
    record.pop("critic/explained_variance", None)
    kept.append(record)
  path.write_text("".join(json.dumps(record) + "\n" for record in kept))
  said = reasons(made_run.read(folder))
  assert "has budget" in said["position_budget"]
  assert "critic/explained_variance" in said["critic"]
  assert not said["position_clip"]


def test_run_without_curation_says_so(folder):
  config = made_run.CONFIG | {"curation.name": "none"}
  (folder / "config.json").write_text(json.dumps(config))
  assert "curation.name=none" in reasons(made_run.read(folder))["survivors"]


def test_damage_is_noted_and_the_rest_is_read(folder):
  path = folder / "metrics.jsonl"
  lines = path.read_text().splitlines()
  path.write_text("\n".join([*lines[:3], lines[3][:20], *lines[4:]]))
  (folder / "config.json").write_text("{")
  run = made_run.read(folder)
  assert len(run.metrics) == 3
  assert any(f"line 4 of {len(lines)}" in note for note in run.notes)
  assert any("config.json: expected JSON" in note for note in run.notes)
  assert run.ratio == "" and run.feedback


@pytest.mark.parametrize(
    "name, content",
    [
        ("config.json", "[1]"),
        ("run.json", "[]"),
        ("run.json", '{"evaluations": 3}'),
        ("report/rollouts.json", "[]"),
        ("feedback/round_0000.json", "[]"),
        ("feedback/round_0000.json", '{"round": 0, "groups": 5}'),
        ("feedback/round_0000.json", '{"round": 0, "groups": [{}]}'),
        ("allocation/round_00000.json", '{"round": 0, "counts": [null]}'),
        ("metrics.jsonl", "17"),
        ("metrics.jsonl", '{"step": 3}'),
        ("metrics.jsonl", '{"kind": "update"}'),
    ],
)
def test_json_of_another_shape_is_noted_and_the_page_is_written(
    name, content, folder, tmp_path
):
  (folder / name).parent.mkdir(exist_ok=True)
  (folder / name).write_text(content)
  run = made_run.read(folder)
  nothing = report.Texts((), "", None, "", ())
  assert report.write([run], [nothing], tmp_path).is_file()
  if not name.startswith("report"):  # Of counts that are made anew.
    assert any(str(folder / name) in note for note in run.notes)


def test_a_damaged_evaluation_takes_no_other_with_it(folder):
  damaged = sorted(folder.glob("evaluations/*/problems.jsonl"))[0]
  damaged.write_text("")
  run = made_run.read(folder)
  assert len(run.evaluations) == 1
  assert any(str(damaged) in note for note in run.notes)


def test_evaluations_of_other_settings_are_left_out_and_counted(folder):
  made_run.evaluation(folder, 2, samples=3)
  run = made_run.read(folder)
  assert list(run.evaluations) == ["after 0 updates", "after 4 updates"]
  assert any("1 of 3 are of other" in note for note in run.notes)


def test_unfinished_evaluation_is_none(folder):
  for path in folder.glob("evaluations/*/results.json"):
    path.unlink()
  assert "evaluations" in made_run.read(folder).missing


def test_lengths_and_reasons_by_hand(folder):
  """Lengths 3, 5, …, 17: the median is 10, the mean 10, half end by length."""
  found = made_run.read(folder).rollouts[1]
  assert found.count == 8 and found.mean == 10
  assert found.reasons == {"stop": 4, "length": 4}
  # 5 % lies at place 0.35 of 0 … 7, between 3 and 5: 3.7.
  np.testing.assert_allclose(found.quantiles, [3.7, 6.5, 10, 13.5, 16.3])


def test_baselines_are_not_counted(tmp_path):
  records = [
      made_run.rollout(0, 0, 4), made_run.rollout(1, 0, 40, role="baseline")
  ]
  made_run.write_shards(tmp_path / "rollouts/round_00000/host_000", records)
  found = made_run.read(tmp_path).rollouts[0]
  assert found.lengths == {4: 1}


def test_counted_folder_is_opened_once(folder):
  before = made_run.read(folder).rollouts
  (shard,) = folder.glob("rollouts/round_00000/*/*array_record*")
  shard.unlink()
  assert made_run.read(folder).rollouts == before
  (folder / "report/rollouts.json").write_text("{")
  run = made_run.read(folder)
  assert list(run.rollouts) == [1]
  assert any("not counted" in note for note in run.notes)


def test_hosts_of_a_round_are_added_and_unfinished_ones_noted(folder):
  place = folder / "rollouts/round_00001"
  more = [made_run.rollout(90, 1, 3)]
  made_run.write_shards(place / "host_001", more)
  late = [made_run.rollout(91, 1, 3)]
  made_run.write_shards(place / "host_002", late, finish=False)
  run = made_run.read(folder)
  assert run.rollouts[1].count == 9 and run.rollouts[1].lengths[3] == 2
  assert any("host_002: not finished" in note for note in run.notes)


def test_folders_elsewhere_are_found_once(folder, tmp_path):
  named = f"{folder / 'rollouts'},{tmp_path / 'nowhere'}"
  assert len(rollouts.folders(folder, named)) == 2
