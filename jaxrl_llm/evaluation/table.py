"""Evaluations as rows of text."""

from collections.abc import Mapping
import math

from jaxrl_llm.evaluation import evaluate
from jaxrl_llm.evaluation import metrics

TITLES = {
    "exact_match": "exact match",
    "majority_vote": "majority vote",
    "finished": "finished",
    "parsed": "answer parsed",
}


def rows(
    evaluations: Mapping[str, evaluate.Evaluation], confidence: float
) -> list[list[str]]:
  """Returns a header and one row per metric, in percent.

  With two or more evaluations the last column is the gain from the first to
  the last, paired over problems. The last row counts failed verifications.

  Args:
    evaluations: of the same problems, by column title, in order.
    confidence: level of the gain's interval.
  """
  names = list(evaluations)
  chosen = list(evaluations.values())
  gains = (
      evaluate.gain(chosen[0], chosen[-1], confidence)
      if len(chosen) > 1
      else {}
  )
  first = chosen[0]
  body = [
      [TITLES.get(metric, metric)]
      + [_percent(each.estimates[metric]) for each in chosen]
      + ([_percent(gains[metric], signed=True)] if gains else [])
      for metric in first.estimates
      if all(metric in each.estimates for each in chosen)
  ]
  failed = [
      f"{each.counts['failed']:.0f} of {each.counts['responses']:.0f}"
      for each in chosen
  ]
  title = f"{first.counts['problems']:.0f} problems × {first.settings.samples}"
  header = [title, *names] + (["gain, points"] if gains else [])
  last = ["without verdict", *failed] + ([""] if gains else [])
  return [header, *body, last]


def _percent(estimate: metrics.Estimate, signed: bool = False) -> str:
  if math.isnan(estimate.value):
    return "–"
  sign = "+" if signed else ""
  low, high = 100 * estimate.low, 100 * estimate.high
  return f"{100 * estimate.value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
