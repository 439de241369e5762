"""Measures responses on held-out problems, and gains between two measures.

`evaluate` grades K responses per problem; `save` and `load` keep the result;
`gain` compares two evaluations of the same problems, pair by pair.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.evaluation import metrics
from jaxrl_llm.evaluation import results
from jaxrl_llm.evaluation import settings as settings_lib
from jaxrl_llm.rollout import generator
from jaxrl_llm.rollout import rewards

EvaluationSettings = settings_lib.EvaluationSettings
Evaluation = results.Evaluation
save = results.save
load = results.load


@dataclasses.dataclass(frozen=True)
class Response:
  """One response to be measured.

  Attributes:
    text: decoded.
    finish_reason: one of types.FINISH_REASONS.
    tokens: its length.
  """

  text: str
  finish_reason: str
  tokens: int


def from_samples(
    sampled: Sequence[Sequence[generator.Sampled]],
) -> list[list[Response]]:
  """Takes what an evaluation needs of `generator.sample`'s result."""
  return [
      [
          Response(
              sample.text,
              sample.response.finish_reason,
              len(sample.response.tokens),
          )
          for sample in samples
      ]
      for samples in sampled
  ]


def evaluate(
    responses: Sequence[Sequence[Response]],
    prompts: Sequence[prompts_lib.Prompt],
    grader: rewards.Grader,
    settings: EvaluationSettings,
    details: Mapping[str, Any] | None = None,
) -> Evaluation:
  """Grades the responses of every prompt and summarises them.

  Args:
    responses: settings.samples responses per prompt.
    prompts: the problems, with distinct ids.
    grader: gives verdicts.
    settings: samples, pass@k and confidence level.
    details: JSON values to keep beside the results.

  Raises:
    ValueError: no problems, problems twice, or a wrong number of responses.
  """
  _check(responses, prompts, settings)
  graded = iter(
      grader.grade([
          (response.text, prompt)
          for prompt, row in zip(prompts, responses, strict=True)
          for response in row
      ])
  )
  problems = [
      _problem(prompt, row, [next(graded) for _ in row])
      for prompt, row in zip(prompts, responses, strict=True)
  ]
  return results.summarise(settings, problems, details or {})


def gain(
    before: Evaluation, after: Evaluation, confidence: float
) -> dict[str, metrics.Estimate]:
  """Returns what each metric gained on the same problems, with intervals.

  Raises:
    ValueError: the evaluations are of different problems or pass@k.
  """
  first, second = (
      {problem.prompt_id: problem for problem in evaluation.problems}
      for evaluation in (before, after)
  )
  if set(first) != set(second):
    raise ValueError(
        f"expected two evaluations of the same problems, found {len(first)}"
        f" and {len(second)} with {len(set(first) & set(second))} in common;"
        " evaluate both with the same prompts and seed."
    )
  ks = sorted(set(before.settings.ks) & set(after.settings.ks))
  pairs = [(first[key].values(ks), second[key].values(ks)) for key in first]
  return {
      name: metrics.paired_gain(
          [left[name] for left, _ in pairs],
          [right[name] for _, right in pairs],
          confidence,
      )
      for name in pairs[0][0]
  }


def _check(
    responses: Sequence[Sequence[Response]],
    prompts: Sequence[prompts_lib.Prompt],
    settings: EvaluationSettings,
) -> None:
  """Refuses what cannot be evaluated; see `evaluate`."""
  if not prompts:
    raise ValueError(
        "expected problems to evaluate on, found none; raise"
        " prompts.eval_count."
    )
  if len({prompt.prompt_id for prompt in prompts}) < len(prompts):
    raise ValueError(
        "expected each problem once, found one twice; drop duplicates."
    )
  lengths = {len(row) for row in responses}
  if len(responses) != len(prompts) or lengths != {settings.samples}:
    raise ValueError(
        f"expected {settings.samples} responses to each of {len(prompts)}"
        f" problems, found {sorted(lengths)} to {len(responses)}."
    )


def _problem(
    prompt: prompts_lib.Prompt,
    responses: Sequence[Response],
    graded: Sequence[rewards.Reward],
) -> results.Problem:
  """Lays responses and their rewards side by side."""
  return results.Problem(
      prompt_id=prompt.prompt_id,
      question=prompt.text,
      reference=prompt.answer,
      texts=[response.text for response in responses],
      finish_reasons=[response.finish_reason for response in responses],
      tokens=[response.tokens for response in responses],
      answers=[reward.answer for reward in graded],
      scores=[reward.parts["correct"] for reward in graded],
      failures=[reward.failure for reward in graded],
  )
