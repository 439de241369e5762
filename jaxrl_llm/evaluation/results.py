"""What an evaluation found, per problem and in sum, in memory and in files."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

from jaxrl_llm.data import atomic
from jaxrl_llm.evaluation import metrics
from jaxrl_llm.evaluation import settings as settings_lib
from jaxrl_llm.rollout import answer_comparison

EvaluationSettings = settings_lib.EvaluationSettings

PROBLEMS_FILE = "problems.jsonl"
RESULTS_FILE = "results.json"
_REMEDY = "delete the folder, and the evaluation is made anew"


@dataclasses.dataclass(frozen=True)
class Problem:
  """What K responses gave on one problem; lists are [K].

  Attributes:
    prompt_id: as in data.prompts.
    question: the problem.
    reference: its answer.
    texts: the responses.
    finish_reasons: why they ended.
    tokens: how long they are.
    answers: extracted answers as spelt, None without one.
    scores: the verifier's verdicts in [0, 1]; NaN where it failed.
    failures: reasons of failed verifications, else empty.
  """

  prompt_id: int
  question: str
  reference: str
  texts: Sequence[str]
  finish_reasons: Sequence[str]
  tokens: Sequence[int]
  answers: Sequence[str | None]
  scores: Sequence[float]
  failures: Sequence[str]

  def values(self, ks: Sequence[int]) -> dict[str, float]:
    """Returns the problem's value of every metric; NaN without a verdict."""
    correct = [_correct(score) for score in self.scores]
    known = [score for score in correct if not math.isnan(score)]
    keys = [
        None if answer is None else answer_comparison.canonical(answer)
        for answer in self.answers
    ]
    values = {
        "exact_match": metrics.exact_match(correct),
        "majority_vote": metrics.majority_vote(keys, correct),
        "any_correct": metrics.any_correct(correct),
    }
    for k in ks:
      values[f"pass@{k}"] = metrics.pass_at_k(len(known), int(sum(known)), k)
    count = len(self.answers)
    values["finished"] = list(self.finish_reasons).count("stop") / count
    values["parsed"] = 1 - list(self.answers).count(None) / count
    return values


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """An evaluation of one policy.

  Attributes:
    settings: how it was made.
    problems: one entry per problem, in the order of the prompts.
    estimates: mean and interval of every metric, by name.
    counts: problems, responses, failed (verifications without a verdict) and
      unscored (problems without any verdict), and mean_tokens of a response.
    details: what the caller wants kept, such as the policy version.
  """

  settings: EvaluationSettings
  problems: Sequence[Problem]
  estimates: Mapping[str, metrics.Estimate]
  counts: Mapping[str, float]
  details: Mapping[str, Any]


def summarise(
    settings: EvaluationSettings,
    problems: Sequence[Problem],
    details: Mapping[str, Any],
) -> Evaluation:
  """Computes every metric with its interval, and the counts."""
  values = [problem.values(settings.ks) for problem in problems]
  scores = [score for problem in problems for score in problem.scores]
  tokens = [length for problem in problems for length in problem.tokens]
  return Evaluation(
      settings=settings,
      problems=problems,
      estimates={
          name: metrics.estimate(
              [row[name] for row in values], settings.confidence
          )
          for name in values[0]
      },
      counts={
          "problems": len(problems),
          "responses": len(scores),
          "failed": sum(map(math.isnan, scores)),
          "unscored": sum(math.isnan(row["exact_match"]) for row in values),
          "mean_tokens": sum(tokens) / len(tokens),
      },
      details=details,
  )


def save(evaluation: Evaluation, folder: str | os.PathLike[str]) -> None:
  """Writes problems.jsonl, then results.json, each whole or not at all."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  lines = []
  for problem in evaluation.problems:
    record = dataclasses.asdict(problem)
    record["scores"] = [
        None if math.isnan(score) else score for score in problem.scores
    ]
    lines.append(json.dumps(record, ensure_ascii=False) + "\n")
  atomic.write_text(folder / PROBLEMS_FILE, "".join(lines))
  atomic.write_json(
      folder / RESULTS_FILE,
      {
          "settings": dataclasses.asdict(evaluation.settings),
          "metrics": {
              name: _without_nan(dataclasses.asdict(estimate))
              for name, estimate in evaluation.estimates.items()
          },
          "counts": dict(evaluation.counts),
          "details": dict(evaluation.details),
      },
  )


def load(folder: str | os.PathLike[str]) -> Evaluation:
  """Reads what `save` wrote.

  Raises:
    FileNotFoundError: the folder holds no complete evaluation.
    ValueError: a file of it is damaged.
  """
  folder = pathlib.Path(folder)
  results = folder / RESULTS_FILE
  if not results.is_file():
    raise FileNotFoundError(
        f"{folder}: expected a complete evaluation with {RESULTS_FILE}, found"
        " none; run `evaluate` first."
    )
  content = atomic.read_json(
      results, ("settings", "counts", "details"), _REMEDY
  )
  try:
    settings = EvaluationSettings(**content["settings"])
    problems = _problems(folder / PROBLEMS_FILE)
    planned = content["counts"]["problems"]
  except (ValueError, TypeError, KeyError) as error:
    raise ValueError(
        f"{folder}: expected what an evaluation wrote, found a damaged file"
        f" ({error}); {_REMEDY}."
    ) from error
  if len(problems) != planned:
    raise ValueError(
        f"{folder / PROBLEMS_FILE}: expected {planned} problems, found"
        f" {len(problems)}; {_REMEDY}."
    )
  return summarise(settings, problems, content["details"])


def _problems(path: pathlib.Path) -> list[Problem]:
  """Reads problems.jsonl."""
  with path.open(encoding="utf-8") as file:
    records = [json.loads(line) for line in file]
  return [
      Problem(
          **record
          | {
              "scores": [
                  math.nan if score is None else score
                  for score in record["scores"]
              ]
          }
      )
      for record in records
  ]


def _correct(score: float) -> float:
  """Returns 1 for a full score, 0 for less, NaN for none."""
  return math.nan if math.isnan(score) else float(score >= 1 - 1e-6)


def _without_nan(record: Mapping[str, Any]) -> dict[str, Any]:
  return {
      key: None if isinstance(value, float) and math.isnan(value) else value
      for key, value in record.items()
  }
