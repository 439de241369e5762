"""Rewards: pure functions of a response's text and its problem.

    total = correct_weight · correct + format_weight · format

`correct` is the verifier's verdict in [0, 1]; `format` is 1 where a complete
statement (a box, a tag, "the answer is") marks the final answer. A verifier
that raises or is late gives no verdict: the reward is NaN, `failed` is set
and the failure counted by its reason. It is never a silent 0.
"""

from collections.abc import Callable, Mapping, Sequence
import collections
from concurrent import futures
import dataclasses
import fractions
import functools
import json
import math
import os
import re

from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.rollout import answer_comparison
from jaxrl_llm.rollout import answer_numbers
from jaxrl_llm.rollout import answer_text
from jaxrl_llm.rollout import answer_units
from jaxrl_llm.rollout import answers
from jaxrl_llm.rollout import verifier_process

Prompt = prompts_lib.Prompt

VERIFIERS = ("reasoning_gym", "math", "last_number")
_MOST_WORKERS = 8


@dataclasses.dataclass(frozen=True)
class RewardSettings:
  """The `reward` section of the configuration; see configs/base.py."""

  verifier: str = "last_number"
  correct_weight: float = 1.0
  format_weight: float = 0.0
  timeout: float = 5.0

  def __post_init__(self):
    if self.verifier not in VERIFIERS:
      raise ValueError(
          f"reward.verifier: expected one of {', '.join(VERIFIERS)}, found"
          f" {self.verifier!r}."
      )
    for name in ("correct_weight", "format_weight"):
      if not math.isfinite(getattr(self, name)):
        raise ValueError(
            f"reward.{name}: expected a finite number, found"
            f" {getattr(self, name)}."
        )
    if not 0 < self.timeout < 3600:
      raise ValueError(
          "reward.timeout: expected seconds above 0 and below 3600, found"
          f" {self.timeout}."
      )


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What a verifier says of a response.

  Attributes:
    correct: score in [0, 1].
    answer: the final answer that was judged, as spelt; None when there is
      none, which is a wrong answer and no failure.
    explicit: whether a complete statement marks the answer.
  """

  correct: float
  answer: str | None
  explicit: bool


Verifier = Callable[[str, Prompt], Verdict]


@dataclasses.dataclass(frozen=True)
class Reward:
  """The reward of one response.

  Attributes:
    total: weighted sum of the parts; NaN when the verifier failed.
    parts: value by name, see `Grader.part_names`.
    answer: the answer as spelt, or None.
    failure: why the verifier gave no verdict, else empty.
  """

  total: float
  parts: Mapping[str, float]
  answer: str | None
  failure: str

  @property
  def failed(self) -> bool:
    """Whether the verifier raised or was late."""
    return bool(self.failure)

  @property
  def parsed(self) -> bool:
    """Whether an answer was found."""
    return self.answer is not None


class Grader:
  """Grades responses, several at once where the verifier runs in processes.

  Attributes:
    part_names: names of the reward parts.
    failures: count of failed verifications by reason, since the start.
  """

  part_names = ("correct", "format")

  def __init__(
      self, settings: RewardSettings, verifier: Verifier, threads: int = 1
  ):
    self._settings = settings
    self._verifier = verifier
    self._threads = threads
    self.failures: collections.Counter[str] = collections.Counter()

  def grade(self, responses: Sequence[tuple[str, Prompt]]) -> list[Reward]:
    """Returns the reward of each (response text, prompt), in order."""
    if self._threads == 1 or len(responses) < 2:
      graded = [self._grade(*response) for response in responses]
    else:
      with futures.ThreadPoolExecutor(self._threads) as executor:
        graded = list(executor.map(lambda r: self._grade(*r), responses))
    self.failures.update(r.failure for r in graded if r.failed)
    return graded

  def _grade(self, response: str, prompt: Prompt) -> Reward:
    try:
      verdict, failure = self._verifier(response, prompt), ""
    except verifier_process.VerifierTimeout:
      verdict, failure = None, "timeout"
    except Exception as error:  # pylint: disable=broad-exception-caught
      verdict, failure = None, f"{type(error).__name__}: {error}"
    if verdict is None:
      found = answers.extract(response)
      verdict = Verdict(math.nan, found.text, found.explicit)
    parts = {"correct": verdict.correct, "format": float(verdict.explicit)}
    settings = self._settings
    total = settings.correct_weight * parts["correct"]
    total += settings.format_weight * parts["format"]
    return Reward(
        total=total,
        parts=parts,
        answer=verdict.answer,
        failure=failure,
    )


def build(
    settings: RewardSettings, prompts: prompts_lib.PromptSettings
) -> Grader:
  """Makes the grader of a configuration.

  Raises:
    ValueError: the verifier does not fit the source of the prompts.
  """
  if settings.verifier == "last_number":
    return Grader(settings, verify_last_number)
  threads = min(_MOST_WORKERS, os.cpu_count() or 1)
  if settings.verifier == "math":
    pool = verifier_process.Pool(("prepare_comparison",), threads)
    verifier = functools.partial(verify_math, pool, settings.timeout)
    return Grader(settings, verifier, threads)
  if prompts.source != "reasoning_gym":
    raise ValueError(
        "reward.verifier: 'reasoning_gym' scores only prompts.source="
        f"'reasoning_gym', found {prompts.source!r}; use 'math' or"
        " 'last_number'."
    )
  arguments = json.dumps(prompts.arguments(), sort_keys=True)
  pool = verifier_process.Pool(
      ("prepare_scorer", prompts.task, arguments), threads
  )
  verifier = functools.partial(
      verify_reasoning_gym, pool, settings.timeout, prompts.task, arguments
  )
  return Grader(settings, verifier, threads)


def verify_last_number(response: str, prompt: Prompt) -> Verdict:
  """Compares the last number of the text with the reference, exactly.

  Separators of thousands, currency and percent signs do not count.

  Raises:
    ValueError: the reference answer is not a number.
  """
  gold = _number(prompt.answer)
  if gold is None:
    raise ValueError(
        f"expected a number as reference answer, found {prompt.answer[:40]!r};"
        " use reward.verifier=math"
    )
  found = answers.last_number(response)
  explicit = answers.extract(response).explicit
  return Verdict(float(_number(found) == gold), found, explicit)


def verify_math(
    pool: verifier_process.Pool,
    timeout: float,
    response: str,
    prompt: Prompt,
) -> Verdict:
  """Compares the final answer with the reference, as mathematics.

  What needs no formulas is decided here; the rest, in a process.
  """
  found = answers.extract(response)
  if found.text is None:
    return Verdict(0.0, None, found.explicit)
  percent_asked = re.search(r"(?i)percent|%", prompt.text) is not None
  verdict = answer_comparison.quick_equal(
      prompt.answer, found.text, percent_asked
  )
  if verdict is None:
    verdict = pool.call(
        "equal", prompt.answer, found.text, percent_asked, timeout=timeout
    )
  return Verdict(float(verdict), found.text, found.explicit)


def verify_reasoning_gym(
    pool: verifier_process.Pool,
    timeout: float,
    task: str,
    arguments: str,
    response: str,
    prompt: Prompt,
) -> Verdict:
  """Scores the final answer by the task's own scorer, in a process.

  Where nothing marks an answer, it is the last number of the text if the
  reference is a number, else the whole text.
  """
  found = answers.extract(response)
  numeric = _number(prompt.answer) is not None
  if found.explicit:
    answer = found.text
    if numeric:
      answer = _spelt_number(answer) or answer
  elif numeric:
    answer = _digits(answers.last_number(response))
  else:
    answer = response.strip() or None
  if answer is None:
    return Verdict(0.0, None, found.explicit)
  entry = {
      "question": prompt.text,
      "answer": prompt.answer or None,
      "metadata": dict(prompt.metadata),
  }
  score = pool.call("score", task, arguments, answer, entry, timeout=timeout)
  return Verdict(score, answer, found.explicit)


def _digits(number: str | None) -> str | None:
  """Drops separators and signs of currency and percent from a number."""
  if number is None:
    return None
  return re.sub(r"[,\s$€£%\\+]", "", number.replace("\u2212", "-")) or None


def _number(text: str | None) -> fractions.Fraction | None:
  """Reads a number as spelt in a text; its exponent is bounded."""
  quantity = answer_numbers.read(_digits(text) or "")
  return quantity.value if quantity else None


def _spelt_number(answer: str) -> str | None:
  """Returns the one number that a final answer is, without decoration."""
  core, _, _ = answer_units.split(
      answer_text.normalise(answer).rpartition("=")[2].strip()
  )
  return core if answer_numbers.read(core) else None
