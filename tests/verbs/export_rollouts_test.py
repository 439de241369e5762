"""export-rollouts, and import-rollouts of what it wrote."""

import json
import pathlib

import exchanged
import jax
import numpy as np
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.training import checkpoints
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import parts


def parameters(workdir: pathlib.Path) -> list[np.ndarray]:
  """Returns the leaves of the latest checkpoint's parameters."""
  config, _ = flags.parse("train", [f"--config={exchanged.TINY}"])
  shapes = parts.model(config, parts.tokenizer(config)).policy.shapes
  path = checkpoints.latest(workdir / "checkpoints")
  return jax.tree.leaves(checkpoints.restore_params(path, shapes))


@pytest.fixture(scope="module")
def exported(source) -> dict[str, pathlib.Path]:
  """The round as JSON lines and as Parquet."""
  for form in ("jsonl", "parquet"):
    given = {"export_rollouts__format": form}
    assert exchanged.call("export-rollouts", source, **given) == 0
  return {
      form: source / "exported" / f"rollouts.{form}"
      for form in ("jsonl", "parquet")
  }


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_exported_and_imported_shards_are_the_same_bytes(
    form, source, exported, tmp_path
):
  given = {"import_rollouts__files": exported[form]}
  assert exchanged.call("import-rollouts", tmp_path, **given) == 0
  own, wanted = (
      exchanged.files_of(workdir / exchanged.SHARDS)
      for workdir in (tmp_path, source)
  )
  assert own == wanted
  assert door.main(["verify", f"--workdir={tmp_path}"]) == 0


def test_a_killed_import_goes_on_to_the_same_bytes(source, exported, tmp_path):
  given = {"import_rollouts__files": exported["jsonl"]}
  assert exchanged.call("import-rollouts", tmp_path, **given) == 0
  whole = exchanged.files_of(tmp_path / exchanged.SHARDS)
  # As a SIGKILL between two shards would have left it.
  for name in whole:
    if name.endswith("00001-of-00002") or name == "manifest.json":
      (tmp_path / exchanged.SHARDS / name).unlink()
  assert exchanged.call("import-rollouts", tmp_path, **given) == 0
  assert exchanged.files_of(tmp_path / exchanged.SHARDS) == whole


def test_other_rows_into_the_same_folder_are_refused(
    exported, tmp_path, capsys
):
  given = {"import_rollouts__files": exported["jsonl"]}
  assert exchanged.call("import-rollouts", tmp_path, **given) == 0
  whole = exchanged.files_of(tmp_path / exchanged.SHARDS)
  lines = exported["jsonl"].read_text("utf-8").splitlines(keepends=True)
  other = tmp_path / "other.jsonl"
  other.write_text("".join(lines[::-1]), "utf-8")
  given = {"import_rollouts__files": other}
  assert exchanged.call("import-rollouts", tmp_path, **given) == door.USER_ERROR
  assert "expected the 16 records of the files" in capsys.readouterr().err
  assert exchanged.files_of(tmp_path / exchanged.SHARDS) == whole


def test_an_exported_file_is_not_written_over(source, exported, capsys):
  before = exported["jsonl"].read_bytes()
  assert exchanged.call("export-rollouts", source) == door.USER_ERROR
  assert "rollouts.jsonl is there already" in capsys.readouterr().err
  assert exported["jsonl"].read_bytes() == before
  given = {"export_rollouts__format": "csv"}
  assert exchanged.call("export-rollouts", source, **given) == 2
  assert "expected one of jsonl, parquet" in capsys.readouterr().err


def test_training_on_imported_shards_is_training_on_the_shards(
    source, exported, tmp_path
):
  imported = tmp_path / "imported"
  given = {"import_rollouts__files": exported["parquet"]}
  assert exchanged.call("import-rollouts", imported, **given) == 0
  found = []
  for name, folder in (("a", source), ("b", imported)):
    given = {"train__rollouts": folder / "rollouts"}
    assert exchanged.call("train", tmp_path / name, **given) == 0
    assert exchanged.updates_of(tmp_path / name)
    found.append(parameters(tmp_path / name))
  for a, b in zip(*found, strict=True):
    np.testing.assert_array_equal(a, b)


def test_exported_rows_that_do_not_fit_are_refused(
    exported, tmp_path, capsys
):
  lines = exported["jsonl"].read_text("utf-8").splitlines()
  row = json.loads(lines[0])
  row["behavior_logprobs"][0] = 0.5
  foreign_row = json.loads(lines[2])
  folder = json.loads(row["folder"]) | {"tokenizer_fingerprint": "other"}
  foreign_row["folder"] = json.dumps(folder)
  rows = [json.dumps(row), lines[1], lines[1], json.dumps(foreign_row)]
  path = tmp_path / "d.jsonl"
  path.write_text("\n".join(rows), "utf-8")
  given = {"import_rollouts__files": path}
  assert exchanged.call("import-rollouts", tmp_path, **given) == 1
  shown = capsys.readouterr().err
  foreign_line, first, second = shown.splitlines()
  assert "d.jsonl:4: folder: written with tokenizer other" in foreign_line
  assert first.startswith(f"{path}:1: behavior_logprobs: expected finite")
  assert f"{path}:3: record_id: the same record is at {path}:2" in second
  assert not (tmp_path / "rollouts").exists()
