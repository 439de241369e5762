"""Evaluations: what they count, keep and compare."""

import dataclasses
import json
import math

import numpy as np
import pytest

from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.evaluation import evaluate
from jaxrl_llm.evaluation import table
from jaxrl_llm.rollout import rewards

GRADER = rewards.Grader(rewards.RewardSettings(), rewards.verify_last_number)
SETTINGS = evaluate.EvaluationSettings(samples=2, pass_at="1,2")


def prompt(index: int, answer: str) -> prompts_lib.Prompt:
  tokens = np.zeros(1, np.int32)
  return prompts_lib.Prompt(index, tokens, f"question {index}", answer, {})


def responses(*texts: str) -> list[evaluate.Response]:
  return [evaluate.Response(text, "stop", len(text)) for text in texts]


PROMPTS = [prompt(index, "7") for index in range(5)]
BEFORE = [
    responses("7", "8"), responses("is 7", "7.0"), responses("1", "none"),
    responses("none", "none"), responses("2", "2"),
]  # fmt: skip
AFTER = [
    responses("7", "7"), responses("7", "7"), responses("7", "none"),
    responses("none", "7"), responses("2", "2"),
]  # fmt: skip


def test_every_problem_counts():
  # Five problems, none dropped or padded: (1 + 2 + 0 + 0 + 0) of 10.
  found = evaluate.evaluate(BEFORE, PROMPTS, GRADER, SETTINGS)
  values = {name: each.value for name, each in found.estimates.items()}
  assert values["exact_match"] == pytest.approx(0.3)
  assert values["majority_vote"] == pytest.approx(0.4)
  assert values["any_correct"] == pytest.approx(0.4)
  assert values["pass@1"] == pytest.approx(0.3)
  assert values["pass@2"] == pytest.approx(0.4)
  assert values["parsed"] == pytest.approx(0.7)
  assert found.estimates["exact_match"].count == 5
  assert found.counts["problems"] == 5
  assert found.counts["responses"] == 10


def test_answers_are_voted_for_by_value():
  # 7 and 7.0 are one answer with two votes against three.
  settings = evaluate.EvaluationSettings(samples=3, pass_at="1")
  row = responses("8", "7", "7.0")
  found = evaluate.evaluate([row], [PROMPTS[0]], GRADER, settings)
  assert found.estimates["majority_vote"].value == 1


def test_unfinished_responses_are_counted():
  first, second = BEFORE[0]
  cut = [dataclasses.replace(first, finish_reason="length"), second]
  found = evaluate.evaluate(
      [cut, *BEFORE[1:]], PROMPTS, GRADER, SETTINGS
  )
  assert found.estimates["finished"].value == pytest.approx(0.9)


def test_failures_are_counted_apart():
  prompts = [prompt(0, "7"), prompt(1, "no number")]
  found = evaluate.evaluate(BEFORE[:2], prompts, GRADER, SETTINGS)
  assert found.counts["failed"] == 2
  assert found.counts["unscored"] == 1
  assert found.estimates["exact_match"].value == 0.5
  assert found.estimates["exact_match"].count == 1
  assert math.isnan(found.problems[1].scores[0])


def test_gain_is_paired_and_order_does_not_matter():
  before = evaluate.evaluate(BEFORE, PROMPTS, GRADER, SETTINGS)
  after = evaluate.evaluate(AFTER[::-1], PROMPTS[::-1], GRADER, SETTINGS)
  gains = evaluate.gain(before, after, 0.95)
  assert gains["exact_match"].value == pytest.approx(0.3)
  assert gains["exact_match"].low > 0
  other = evaluate.evaluate(BEFORE[:4], PROMPTS[:4], GRADER, SETTINGS)
  with pytest.raises(ValueError, match="same problems"):
    evaluate.gain(before, other, 0.95)


def test_saved_and_loaded_is_the_same(tmp_path):
  prompts = [*PROMPTS[:4], prompt(4, "no number")]
  found = evaluate.evaluate(
      BEFORE, prompts, GRADER, SETTINGS, {"version": 3}
  )
  evaluate.save(found, tmp_path / "evaluation")
  again = evaluate.load(tmp_path / "evaluation")
  np.testing.assert_equal(
      dataclasses.asdict(again), dataclasses.asdict(found)
  )
  names = {path.name for path in (tmp_path / "evaluation").iterdir()}
  assert names == {"problems.jsonl", "results.json"}
  lines = (tmp_path / "evaluation" / "problems.jsonl").read_text().splitlines()
  # Strict JSON: a missing verdict is null, never NaN.
  records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
  assert records[4]["scores"] == [None, None]
  assert records[0]["answers"] == ["7", "8"]
  (tmp_path / "evaluation" / "results.json").unlink()
  with pytest.raises(FileNotFoundError, match="results.json"):
    evaluate.load(tmp_path / "evaluation")


@pytest.mark.parametrize(
    "name,keep,expected",
    [
        ("results.json", 9, "expected JSON, found a damaged file"),
        ("problems.jsonl", 0, "expected 5 problems, found 0"),
        ("problems.jsonl", 9, "found a damaged file"),
    ],
)
def test_damage_is_named_with_the_remedy(name, keep, expected, tmp_path):
  found = evaluate.evaluate(BEFORE, PROMPTS, GRADER, SETTINGS)
  evaluate.save(found, tmp_path)
  content = (tmp_path / name).read_bytes()
  (tmp_path / name).write_bytes(content[:keep])
  with pytest.raises(ValueError, match="delete the folder") as caught:
    evaluate.load(tmp_path)
  assert str(tmp_path) in str(caught.value) and expected in str(caught.value)


def test_table_has_both_evaluations_and_the_gain():
  before = evaluate.evaluate(BEFORE, PROMPTS, GRADER, SETTINGS)
  after = evaluate.evaluate(AFTER, PROMPTS, GRADER, SETTINGS)
  rows = table.rows({"before": before, "after": after}, 0.95)
  assert rows[0] == ["5 problems × 2", "before", "after", "gain, points"]
  match = next(row for row in rows if row[0] == "exact match")
  assert match[1].startswith("30.0 [") and match[2].startswith("60.0 [")
  assert match[3].startswith("+30.0 [+")
  assert rows[-1] == ["without verdict", "0 of 10", "0 of 10", ""]
  assert len(table.rows({"before": before}, 0.95)[0]) == 2


@pytest.mark.parametrize(
    "change,key",
    [
        ({"samples": 0}, "evaluation.samples"),
        ({"temperature": -1.0}, "evaluation.temperature"),
        ({"temperature": float("nan")}, "evaluation.temperature"),
        ({"top_p": 0.0}, "evaluation.top_p"),
        ({"pass_at": "1,8"}, "evaluation.pass_at"),
        ({"pass_at": "one"}, "evaluation.pass_at"),
        ({"confidence": 1.0}, "evaluation.confidence"),
        ({"every_rounds": -1}, "evaluation.every_rounds"),
    ],
)
def test_settings_refuse(change, key):
  with pytest.raises(ValueError, match=key):
    evaluate.EvaluationSettings(**change)


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match="found none"):
    evaluate.evaluate([], [], GRADER, SETTINGS)
  with pytest.raises(ValueError, match="2 responses to each of 5"):
    evaluate.evaluate(BEFORE[:4], PROMPTS, GRADER, SETTINGS)
  with pytest.raises(ValueError, match="found one twice"):
    evaluate.evaluate(BEFORE[:2], [PROMPTS[0]] * 2, GRADER, SETTINGS)
