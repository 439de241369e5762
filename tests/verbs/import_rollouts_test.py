"""import-rollouts and export-rollouts, to files, shards and training."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib

import frozen_rounds
import jax
import numpy as np
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm import types
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import metrics
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import imports
from jaxrl_llm.verbs import parts

TINY = frozen_rounds.ROOT / "configs/tiny.py"
SHARDS = "rollouts/round_00000/host_000"
# Two shards, so that a half-written folder can be told from a whole one.
SIZES = frozen_rounds.SIZES | {"generation.records_per_shard": 16}


def call(verb: str, workdir: pathlib.Path, **keys) -> int:
  """Runs a verb in this process; keys have __ for a dot."""
  words = {name.replace("__", "."): value for name, value in keys.items()}
  return door.main([
      verb,
      f"--config={TINY}",
      *(f"--config.{name}={value}" for name, value in (SIZES | words).items()),
      f"--workdir={workdir}",
  ])


def parameters(workdir: pathlib.Path) -> list[np.ndarray]:
  """Returns the leaves of the latest checkpoint's parameters."""
  config, _ = flags.parse("train", [f"--config={TINY}"])
  shapes = parts.model(config, parts.tokenizer(config)).policy.shapes
  path = checkpoints.latest(workdir / "checkpoints")
  return jax.tree.leaves(checkpoints.restore_params(path, shapes))


def updates_of(workdir: pathlib.Path) -> list[dict[str, float]]:
  """Returns what each update said."""
  rows = metrics.read(workdir / "metrics.jsonl")
  return [row for row in rows if row["kind"] == "update"]


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
  """A working directory with a generated round, graded by hand."""
  workdir = tmp_path_factory.mktemp("source")
  assert call("generate", workdir, sampling__temperature=0.8) == 0
  metadata, rollouts = frozen_rounds.records_of(workdir / SHARDS)
  verdicts = {"correct": float("nan"), "format": 0.0, "parsed": 1.0}
  graded = [
      dataclasses.replace(
          rollout,
          reward=float(rollout.response_tokens[0] % 2 == 0),
          reward_parts=verdicts,
      )
      for rollout in rollouts
  ]
  config = {**metadata.config, schema.PROMPT_WEIGHTS: {
      str(rollout.prompt_id): 1.0 + rollout.prompt_id % 2
      for rollout in graded
  }}
  metadata = dataclasses.replace(metadata, config=config)
  for path in (workdir / SHARDS).iterdir():
    path.unlink()
  writer = shards.ShardWriter(workdir / SHARDS, metadata, 2)
  writer.write(0, graded[:16])
  writer.write(1, graded[16:])
  writer.finish()
  return workdir


@pytest.fixture(scope="module")
def exported(source) -> dict[str, pathlib.Path]:
  """The round as JSON lines and as Parquet."""
  for form in ("jsonl", "parquet"):
    assert call("export-rollouts", source, export_rollouts__format=form) == 0
  return {
      form: source / "exported" / f"rollouts.{form}"
      for form in ("jsonl", "parquet")
  }


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_exported_and_imported_shards_are_the_same_bytes(
    form, source, exported, tmp_path
):
  given = {"import_rollouts__files": exported[form]}
  assert call("import-rollouts", tmp_path, **given) == 0
  assert files_of(tmp_path / SHARDS) == files_of(source / SHARDS)
  assert door.main(["verify", f"--workdir={tmp_path}"]) == 0


def test_a_killed_import_goes_on_to_the_same_bytes(source, exported, tmp_path):
  given = {"import_rollouts__files": exported["jsonl"]}
  assert call("import-rollouts", tmp_path, **given) == 0
  whole = files_of(tmp_path / SHARDS)
  # As a SIGKILL between two shards would have left it.
  for name in whole:
    if name.endswith("00001-of-00002") or name == "manifest.json":
      (tmp_path / SHARDS / name).unlink()
  assert call("import-rollouts", tmp_path, **given) == 0
  assert files_of(tmp_path / SHARDS) == whole


def test_other_rows_into_the_same_folder_are_refused(
    exported, tmp_path, capsys
):
  given = {"import_rollouts__files": exported["jsonl"]}
  assert call("import-rollouts", tmp_path, **given) == 0
  whole = files_of(tmp_path / SHARDS)
  lines = exported["jsonl"].read_text("utf-8").splitlines(keepends=True)
  other = tmp_path / "other.jsonl"
  other.write_text("".join(lines[::-1]), "utf-8")
  given = {"import_rollouts__files": other}
  assert call("import-rollouts", tmp_path, **given) == door.USER_ERROR
  assert "expected the 16 records of the files" in capsys.readouterr().err
  assert files_of(tmp_path / SHARDS) == whole


def test_an_exported_file_is_not_written_over(source, exported, capsys):
  before = exported["jsonl"].read_bytes()
  assert call("export-rollouts", source) == door.USER_ERROR
  assert "rollouts.jsonl is there already" in capsys.readouterr().err
  assert exported["jsonl"].read_bytes() == before
  assert call("export-rollouts", source, export_rollouts__format="csv") == 2
  assert "expected one of jsonl, parquet" in capsys.readouterr().err


def test_training_on_imported_shards_is_training_on_the_shards(
    source, exported, tmp_path
):
  imported = tmp_path / "imported"
  given = {"import_rollouts__files": exported["parquet"]}
  assert call("import-rollouts", imported, **given) == 0
  found = []
  for name, folder in (("a", source), ("b", imported)):
    given = {"train__rollouts": folder / "rollouts"}
    assert call("train", tmp_path / name, **given) == 0
    assert updates_of(tmp_path / name)
    found.append(parameters(tmp_path / name))
  for a, b in zip(*found, strict=True):
    np.testing.assert_array_equal(a, b)


def dump(
    path: pathlib.Path, rollouts: Sequence[types.Rollout], shift: int = 0
) -> pathlib.Path:
  """Writes rollouts as vLLM does, a line per prompt, log-probs shifted."""
  groups: dict[int, list[types.Rollout]] = {}
  for rollout in rollouts:
    groups.setdefault(rollout.group_id, []).append(rollout)
  lines = []
  for members in groups.values():
    outputs = [
        {
            "index": index,
            "token_ids": rollout.response_tokens.tolist(),
            "logprobs": [
                {"logprob": float(value)}
                for value in np.roll(rollout.behavior_logprobs, shift)
            ],
            "finish_reason": rollout.finish_reason,
            "reward": rollout.reward,
        }
        for index, rollout in enumerate(members)
    ]
    first = members[0]
    lines.append(json.dumps({
        "prompt_token_ids": first.prompt_tokens.tolist(),
        "question": first.prompt_text,
        "reference_answer": first.reference_answer,
        "outputs": outputs,
    }))
  path.write_text("\n".join(lines) + "\n", "utf-8")
  return path


def foreign(path: pathlib.Path, workdir: pathlib.Path, **keys) -> int:
  """Imports a dump of vLLM's."""
  given = {
      "files": path,
      "format": "vllm",
      "fields": "question=question",
      "temperature": 0.8,
      "logprobs": "tempered",
  } | keys
  words = {f"import_rollouts__{name}": value for name, value in given.items()}
  return call("import-rollouts", workdir, **words)


@pytest.fixture(scope="module")
def generated(source) -> list[types.Rollout]:
  return frozen_rounds.records_of(source / SHARDS)[1]


def test_foreign_rollouts_of_the_model_are_trained_on_as_fresh(
    generated, tmp_path, capsys
):
  path = dump(tmp_path / "d.jsonl", generated)
  assert foreign(path, tmp_path / "run", drawn_by_model=True) == 0
  said = capsys.readouterr().out
  assert "log-probs: as recorded, 0.00" in said
  metadata, found = frozen_rounds.records_of(tmp_path / "run" / SHARDS)
  assert metadata.sampling["temperature"] == 0.8
  for own, wanted in zip(found, generated, strict=True):
    for name in (
        "prompt_id", "sample_index", "reward", "finish_reason", "prompt_text",
        "response_text", "reference_answer", "temperature",
    ):
      assert getattr(own, name) == getattr(wanted, name), name
    for name in ("prompt_tokens", "response_tokens", "behavior_logprobs"):
      np.testing.assert_array_equal(getattr(own, name), getattr(wanted, name))
  assert door.main(["verify", f"--workdir={tmp_path / 'run'}"]) == 0
  assert call("train", tmp_path / "run") == 0
  updates = updates_of(tmp_path / "run")
  assert updates and all(not row["skipped"] for row in updates)
  assert np.isfinite([row["loss"] for row in updates]).all()


def test_foreign_rollouts_of_unknown_weights_are_stale(
    generated, tmp_path, capsys
):
  path = dump(tmp_path / "d.jsonl", generated)
  assert foreign(path, tmp_path) == 0
  metadata, _ = frozen_rounds.records_of(tmp_path / SHARDS)
  assert metadata.weights_fingerprint == imports.UNKNOWN
  given = {"objective__name": "ppo"}
  assert call("train", tmp_path / "run", train__rollouts=tmp_path, **given) == 2
  assert "were drawn by other weights" in capsys.readouterr().err


@pytest.mark.parametrize("shift,side", [(1, "last"), (-1, "next")])
def test_shifted_log_probs_are_refused(
    shift, side, generated, tmp_path, capsys
):
  path = dump(tmp_path / "d.jsonl", generated, shift)
  assert foreign(path, tmp_path, drawn_by_model=True) == door.USER_ERROR
  assert f"those of the {side} token fit better" in capsys.readouterr().err
  assert not (tmp_path / "rollouts").exists()


def test_log_probs_of_other_weights_are_refused(generated, tmp_path, capsys):
  path = dump(tmp_path / "d.jsonl", [
      dataclasses.replace(x, behavior_logprobs=x.behavior_logprobs - 1)
      for x in generated
  ])
  assert foreign(path, tmp_path, drawn_by_model=True) == door.USER_ERROR
  assert "the weights, the temperature or the kind" in capsys.readouterr().err


def test_recomputed_log_probs_are_the_models(generated, tmp_path, capsys):
  path = dump(tmp_path / "d.jsonl", [
      dataclasses.replace(x, behavior_logprobs=np.full_like(
          x.behavior_logprobs, np.nan
      ))
      for x in generated
  ])
  assert foreign(path, tmp_path) == 1
  assert foreign(path, tmp_path, recompute_logprobs=True) == 0
  said = capsys.readouterr().out
  metadata, found = frozen_rounds.records_of(tmp_path / SHARDS)
  assert "recomputed as proximal" in metadata.sampling["logprobs"]
  assert metadata.sampling["logprobs"] in said
  # Another policy may have drawn them: stale to every trainer.
  assert metadata.weights_fingerprint == imports.UNKNOWN
  for own, wanted in zip(found, generated, strict=True):
    np.testing.assert_allclose(
        own.behavior_logprobs, wanted.behavior_logprobs, atol=1e-4
    )


def test_rewards_are_graded_by_the_configured_verifier(
    generated, tmp_path, capsys
):
  """The reference answers are what the verifier finds, or one more."""
  text = b"7 is 12"
  path = dump(tmp_path / "d.jsonl", [
      dataclasses.replace(
          rollout,
          response_tokens=np.frombuffer(text, np.uint8).astype(np.int32),
          behavior_logprobs=np.full(len(text), -1, np.float32),
          reference_answer=str(12 + rollout.prompt_id % 2),
          reward=9.0,
      )
      for rollout in generated
  ])
  keys = {"grade": True, "fields": "question=question,reward="}
  assert foreign(path, tmp_path, **keys) == 0
  metadata, found = frozen_rounds.records_of(tmp_path / SHARDS)
  assert metadata.reward_parts == ("correct", "format", "parsed")
  assert {rollout.reward for rollout in found} == {0.0, 1.0}
  for rollout in found:
    assert rollout.reward == float(rollout.prompt_id % 2 == 0)
    assert rollout.reward_parts["correct"] == rollout.reward
  words = {f"import_rollouts__{name}": value for name, value in keys.items()}
  words |= {
      "reward__verifier": "reasoning_gym",
      "import_rollouts__files": path,
      "import_rollouts__format": "vllm",
  }
  assert call("import-rollouts", tmp_path, **words) == door.USER_ERROR
  assert "use 'math' or 'last_number'" in capsys.readouterr().err


def test_refused_rows_are_named_and_nothing_is_written(
    generated, tmp_path, capsys
):
  path = dump(tmp_path / "d.jsonl", generated)
  lines = path.read_text("utf-8").splitlines()
  row = json.loads(lines[1])
  row["outputs"][3]["logprobs"].pop()
  row["outputs"][5]["reward"] = None
  lines[1:] = [json.dumps(row), "{", *lines[2:]]
  path.write_text("\n".join(lines), "utf-8")
  assert foreign(path, tmp_path / "run") == 1
  shown = capsys.readouterr()
  first, second, third = shown.err.splitlines()
  assert first.startswith(f"{path}:2, response 3: logprobs: expected 4")
  assert second.startswith(f"{path}:2, response 5: reward: expected a number")
  assert third.startswith(f"{path}:3: not JSON")
  assert "3 responses or rows refused; nothing was written." in shown.out
  assert not (tmp_path / "run" / "rollouts").exists()


def test_the_same_import_gives_the_same_bytes_wherever_files_lie(
    generated, tmp_path
):
  found = []
  for name in ("a", "b"):
    (tmp_path / name).mkdir()
    path = dump(tmp_path / name / "d.jsonl", generated)
    assert foreign(path, tmp_path / name) == 0
    found.append(files_of(tmp_path / name / SHARDS))
  assert found[0] == found[1]


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
  assert call("import-rollouts", tmp_path, **given) == 1
  shown = capsys.readouterr().err
  foreign_line, first, second = shown.splitlines()
  assert "d.jsonl:4: folder: written with tokenizer other" in foreign_line
  assert first.startswith(f"{path}:1: behavior_logprobs: expected finite")
  assert f"{path}:3: record_id: the same record is at {path}:2" in second
  assert not (tmp_path / "rollouts").exists()
