"""The replay verb: tables, files, refusals in one line, and resuming."""

import json

import frozen_rounds
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.lab import replay as replay_lib
from jaxrl_llm.losses import algorithms
from jaxrl_llm.verbs import manual
from jaxrl_llm.verbs import replay

FILE = frozen_rounds.FILES["ppo"]
KEYS = {"lab.updates": 2, "lab.correction": "bypass"}


def call(shards, workdir, objectives, **keys) -> int:
  """Runs the verb in this process; keys have __ for a dot."""
  changed = {name.replace("__", "."): value for name, value in keys.items()}
  words = frozen_rounds.words(FILE, KEYS | changed)
  return door.main([
      "replay", *words, f"--shards={shards}", f"--objectives={objectives}",
      f"--workdir={workdir}",
  ])


def read(workdir):
  return json.loads((workdir / replay.RESULT).read_text())


@pytest.fixture(scope="module")
def whole(donor, tmp_path_factory):
  """A replay of four objectives that nothing disturbed."""
  workdir = tmp_path_factory.mktemp("whole")
  named = "ppo,topr,cppo_prefix:divergence=topk_tv,tis=ppo:correction=tis"
  assert call(donor / "round_00001", workdir, named) == 0
  return workdir, named


def test_tables_and_numbers(whole, donor, capsys):
  workdir, named = whole
  found = read(workdir)
  labels = ["ppo", "topr", "cppo_prefix:divergence=topk_tv", "tis"]
  assert found["objectives"] == labels and found["not_replayed"] == {}
  for name in ("start", "after", "moved"):
    matrix = found["cosines"][name]
    assert [matrix[n][n] for n in range(4)] == pytest.approx([1.0] * 4)
    assert matrix[0][1] == matrix[1][0] < 1
  start = {label: found["rows"][label]["start"] for label in labels}
  # Of one policy on the same tokens, so the drift is one number.
  drifts = {row["tv/behavior"] for row in start.values()}
  assert max(drifts) - min(drifts) < 1e-6 < min(drifts)
  assert "correction/mean" in start["tis"]
  assert "correction/mean" not in start["ppo"]
  assert found["rows"]["ppo"]["after"]["updates"] == 2
  text = (workdir / replay.TEXT).read_text()
  assert text.startswith("before the first update\n")
  assert "after 2 mini-batches, on the next one" in text
  assert not (workdir / replay.CELLS).exists()
  # Finished, the same command shows the tables again; a kill between the
  # result and the end leaves no vectors for good.
  (workdir / replay.CELLS / "ppo").mkdir(parents=True)
  assert call(donor / "round_00001", workdir, named) == 0
  assert not (workdir / replay.CELLS).exists()
  assert text in capsys.readouterr().out


def test_a_killed_replay_goes_on_to_the_same_numbers(
    whole, donor, tmp_path, monkeypatch
):
  _, named = whole
  run, done = replay_lib.run, []

  def run_or_die(bench, entry, *rest):
    if len(done) == 2:
      raise KeyboardInterrupt
    done.append(entry.label)
    return run(bench, entry, *rest)

  monkeypatch.setattr(replay_lib, "run", run_or_die)
  shards = donor / "round_00001"
  assert call(shards, tmp_path, named) == 130
  assert not (tmp_path / replay.RESULT).exists()
  rows = sorted((tmp_path / replay.CELLS).glob("*/rows.json"))
  before = [path.stat().st_mtime_ns for path in rows]
  assert len(rows) == 2
  times = []

  def run_and_look(*given):
    times.append([path.stat().st_mtime_ns for path in rows])
    return run(*given)

  monkeypatch.setattr(replay_lib, "run", run_and_look)
  assert call(shards, tmp_path, named) == 0
  assert times[-1] == before
  assert read(tmp_path) == read(whole[0])


def test_all_says_what_is_not_replayed(donor, tmp_path, monkeypatch):
  """The donor's shards have greedy answers and 20 recorded ids."""

  def run(bench, entry, reference, folder, exact):
    del bench, reference, folder, exact
    return {stage: {"loss": 0.0} for stage in replay_lib.STAGES}

  monkeypatch.setattr(replay_lib, "run", run)
  assert call(donor / "round_00001", tmp_path, "all") == 0
  found = read(tmp_path)
  refused = found["not_replayed"]
  assert set(refused) | set(found["objectives"]) == set(algorithms.REGISTRY)
  assert set(refused) == {"vcppo", "vapo", "tppo", "dvpo", "sis"}
  assert "a critic" in refused["vapo"]
  assert "sampling.record_topk=100" in refused["sis"]
  text = (tmp_path / replay.TEXT).read_text()
  assert f"not replayed: sis: {refused['sis']}" in text


MISTAKES = {
    "name": ({"objectives": "grpo,gpso"}, "the nearest is 'gspo'"),
    "critic": ({"objectives": "ppo,vapo"}, "vapo takes its advantages"),
    "topk": ({"objectives": "sis"}, "expected the top 100 ids"),
    "updates": ({"lab__updates": 4}, "less than the 4 mini-batches"),
    "limit": ({"lab__exact_limit": -1}, "expected 0 (never) or more"),
    "bandit": (
        {"train__clip_bandit": "ucb1"}, "train.clip_bandit: a bandit"
    ),
    "checkpoint": (
        {"lab__checkpoint": "no/step_1"}, "expected a checkpoint folder"
    ),
    "staleness that nobody named": (
        {"lab__correction": "hope"}, "expected one of none, tis"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_gives_one_line(name, donor, tmp_path, capsys):
  changes, expected = MISTAKES[name]
  given = {"objectives": "ppo"} | changes
  code = call(donor / "round_00001", tmp_path, **given)
  text = capsys.readouterr().err
  assert code == door.USER_ERROR
  assert expected in text and text.count("\n") == 1
  assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("shards", ["", "/no/such/folder"])
def test_shards_that_are_not_there(shards, tmp_path, capsys):
  assert call(shards, tmp_path, "ppo") == door.USER_ERROR
  text = capsys.readouterr().err
  assert "shard folders" in text and text.count("\n") == 1


def test_a_checkpoint_is_a_start(donor, whole, tmp_path):
  """The second round was drawn by it, so its ratios are 1."""
  latest, = (donor.parent / "checkpoints").iterdir()
  code = call(
      donor / "round_00001", tmp_path, "ppo", lab__checkpoint=latest
  )
  assert code == 0
  fresh = read(tmp_path)["rows"]["ppo"]["start"]["ratio_deviation"]
  old = read(whole[0])["rows"]["ppo"]["start"]["ratio_deviation"]
  assert fresh < 1e-5 < old


def test_short_flags_are_in_the_help_and_belong_to_their_verb(capsys):
  assert manual.short_flags("train") == {}
  assert door.main(["replay", "--help"]) == 0
  assert "--shards=VALUE\n      Short for --config.lab.shards." in (
      capsys.readouterr().out
  )
  words = [f"--config={FILE}", "--shards=here"]
  assert door.main(["train", *words]) == door.USER_ERROR
  assert "shards" in capsys.readouterr().err


def test_adapters_are_what_moves(donor, tmp_path):
  """dpo is compared with the frozen base beside them."""
  code = call(
      donor / "round_00001", tmp_path, "ppo,dpo", model__lora_rank=2
  )
  assert code == 0
  found = read(tmp_path)
  for row in found["rows"].values():
    assert row["after"]["updates"] == 2 and row["after"]["moved"] > 0
  assert found["cosines"]["start"][0][1] != pytest.approx(1.0, abs=1e-3)
