"""import-rollouts of other systems' dumps, to shards and training."""

import dataclasses
import json

import exchanged
import frozen_rounds
import numpy as np
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm import types
from jaxrl_llm.verbs import imports


@pytest.fixture(scope="module")
def generated(source) -> list[types.Rollout]:
  return frozen_rounds.records_of(source / exchanged.SHARDS)[1]


def test_foreign_rollouts_of_the_model_are_trained_on_as_fresh(
    generated, tmp_path, capsys
):
  path = exchanged.dump(tmp_path / "d.jsonl", generated)
  assert exchanged.foreign(path, tmp_path / "run", drawn_by_model=True) == 0
  said = capsys.readouterr().out
  assert "log-probs: as recorded, 0.00" in said
  folder = tmp_path / "run" / exchanged.SHARDS
  metadata, found = frozen_rounds.records_of(folder)
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
  assert exchanged.call("train", tmp_path / "run") == 0
  updates = exchanged.updates_of(tmp_path / "run")
  assert updates and all(not row["skipped"] for row in updates)
  assert np.isfinite([row["loss"] for row in updates]).all()


def test_foreign_rollouts_of_unknown_weights_are_stale(
    generated, tmp_path, capsys
):
  path = exchanged.dump(tmp_path / "d.jsonl", generated)
  assert exchanged.foreign(path, tmp_path) == 0
  metadata, _ = frozen_rounds.records_of(tmp_path / exchanged.SHARDS)
  assert metadata.weights_fingerprint == imports.UNKNOWN
  given = {"objective__name": "ppo", "train__rollouts": tmp_path}
  assert exchanged.call("train", tmp_path / "run", **given) == 2
  assert "were drawn by other weights" in capsys.readouterr().err


@pytest.mark.parametrize("shift,side", [(1, "last"), (-1, "next")])
def test_shifted_log_probs_are_refused(
    shift, side, generated, tmp_path, capsys
):
  path = exchanged.dump(tmp_path / "d.jsonl", generated, shift)
  code = exchanged.foreign(path, tmp_path, drawn_by_model=True)
  assert code == door.USER_ERROR
  assert f"those of the {side} token fit better" in capsys.readouterr().err
  assert not (tmp_path / "rollouts").exists()


def test_log_probs_of_other_weights_are_refused(generated, tmp_path, capsys):
  path = exchanged.dump(tmp_path / "d.jsonl", [
      dataclasses.replace(x, behavior_logprobs=x.behavior_logprobs - 1)
      for x in generated
  ])
  code = exchanged.foreign(path, tmp_path, drawn_by_model=True)
  assert code == door.USER_ERROR
  assert "the weights, the temperature or the kind" in capsys.readouterr().err


def test_recomputed_log_probs_are_the_models(generated, tmp_path, capsys):
  path = exchanged.dump(tmp_path / "d.jsonl", [
      dataclasses.replace(x, behavior_logprobs=np.full_like(
          x.behavior_logprobs, np.nan
      ))
      for x in generated
  ])
  assert exchanged.foreign(path, tmp_path) == 1
  assert exchanged.foreign(path, tmp_path, recompute_logprobs=True) == 0
  said = capsys.readouterr().out
  metadata, found = frozen_rounds.records_of(tmp_path / exchanged.SHARDS)
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
  path = exchanged.dump(tmp_path / "d.jsonl", [
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
  assert exchanged.foreign(path, tmp_path, **keys) == 0
  metadata, found = frozen_rounds.records_of(tmp_path / exchanged.SHARDS)
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
  assert exchanged.call("import-rollouts", tmp_path, **words) == door.USER_ERROR
  assert "use 'math' or 'last_number'" in capsys.readouterr().err


def test_refused_rows_are_named_and_nothing_is_written(
    generated, tmp_path, capsys
):
  path = exchanged.dump(tmp_path / "d.jsonl", generated)
  lines = path.read_text("utf-8").splitlines()
  row = json.loads(lines[1])
  row["outputs"][3]["logprobs"].pop()
  row["outputs"][5]["reward"] = None
  lines[1:] = [json.dumps(row), "{", *lines[2:]]
  path.write_text("\n".join(lines), "utf-8")
  assert exchanged.foreign(path, tmp_path / "run") == 1
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
    path = exchanged.dump(tmp_path / name / "d.jsonl", generated)
    assert exchanged.foreign(path, tmp_path / name) == 0
    found.append(exchanged.files_of(tmp_path / name / exchanged.SHARDS))
  assert found[0] == found[1]
