"""Problems to train and evaluate on, and the token ids they are posed with."""

from collections.abc import Iterator, Sequence
import dataclasses
import hashlib
import json
import re
from typing import Any
import unicodedata

from absl import logging
import numpy as np

from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import problems as sources
from jaxrl_llm.data import tokenizer as tokenizer_lib

SOURCES = ("reasoning_gym", "jsonl", "tfds")


@dataclasses.dataclass(frozen=True)
class PromptSettings:
  """The `prompts` section of the configuration; see configs/base.py."""

  source: str = "reasoning_gym"
  task: str = "basic_arithmetic"
  task_args: str = "{}"
  path: str = ""
  question_field: str = "question"
  answer_field: str = ""
  count: int = 4096
  eval_count: int = 200
  eval_share: float = 0.2
  system: str = ""
  template: str = "{question}"
  max_tokens: int = 128
  drop_long: bool = False

  def __post_init__(self):
    if self.source not in SOURCES:
      raise ValueError(
          f"prompts.source: expected one of {', '.join(SOURCES)}, found"
          f" {self.source!r}."
      )
    if self.source == "reasoning_gym" and self.count < 1:
      raise ValueError(
          f"prompts.count: expected at least 1, found {self.count}; a"
          " procedural task has no end of its own."
      )
    if self.count < 0 or self.eval_count < 0 or self.max_tokens < 1:
      raise ValueError(
          "prompts: expected count ≥ 0, eval_count ≥ 0, max_tokens ≥ 1,"
          f" found {self.count}, {self.eval_count} and {self.max_tokens}."
      )
    if not 0 <= self.eval_share < 1:
      raise ValueError(
          "prompts.eval_share: expected a share in [0, 1), found"
          f" {self.eval_share}."
      )
    if "{question}" not in self.template:
      raise ValueError(
          "prompts.template: expected {question} somewhere, found"
          f" {self.template!r}; the problem would be lost."
      )
    self.arguments()

  def arguments(self) -> dict[str, Any]:
    """Returns `task_args` as a dictionary."""
    try:
      arguments = json.loads(self.task_args or "{}")
    except json.JSONDecodeError as error:
      raise ValueError(
          "prompts.task_args: expected a JSON object, found"
          f" {self.task_args!r} ({error})."
      ) from error
    if not isinstance(arguments, dict):
      raise ValueError(
          "prompts.task_args: expected a JSON object, found"
          f" {self.task_args!r}."
      )
    return arguments


@dataclasses.dataclass(frozen=True)
class Problem:
  """A problem with its ground truth.

  Attributes:
    prompt_id: 63-bit fingerprint of the normalised question.
    question: the problem as given.
    answer: the final answer.
    metadata: what the source's verifier needs besides.
  """

  prompt_id: int
  question: str
  answer: str
  metadata: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Prompt:
  """A problem as token ids, ready to be answered.

  Attributes:
    prompt_id: as in Problem.
    tokens: int32 [P], chat template applied; used as they are ever after.
    text: the problem as given (not the rendered template).
    answer: the final answer.
    metadata: as in Problem.
  """

  prompt_id: int
  tokens: np.ndarray
  text: str
  answer: str
  metadata: dict[str, Any]


def normalise(question: str) -> str:
  """Reduces a question to what makes it the same problem as another.

  Case, unicode form, spacing, and brackets around a whole expression
  ("Calculate ( 5 - 3 )." is "Calculate 5 - 3.") do not matter.
  """
  text = unicodedata.normalize("NFKC", question).casefold()
  text = " ".join(text.split())
  bracketed = r"(?<=[a-z:=] )\(\s*([^()]*?)\s*\)(?=\s*(?:[.?=:]|$))"
  text = re.sub(bracketed, r"\1", text)
  return re.sub(r"\s*([^\w\s])\s*", r"\1", text).strip()


def load(
    settings: PromptSettings, seed: int
) -> tuple[list[Problem], list[Problem]]:
  """Reads the problems and splits them.

  A problem is held out of training when the hash of its normalised question
  falls into the first `eval_share` of all hashes: that depends neither on how
  many problems are drawn nor on their order or seed. Of those held out, the
  `eval_count` with the smallest hashes are evaluated.

  Args:
    settings: what to read.
    seed: of procedural tasks; files ignore it.

  Returns:
    Training problems in the order of the source and evaluation problems in
    the order of their hashes; without duplicates, and disjoint.

  Raises:
    FileNotFoundError, ValueError: naming the item and the key to change.
  """
  problems: dict[int, Problem] = {}
  for source in _read(settings, seed):
    if not source.question.strip() or not source.answer.strip():
      missing = "answer" if source.question.strip() else "question"
      raise ValueError(
          f"{source.name}: the {missing} is empty; delete the item or set"
          f" prompts.{missing}_field."
      )
    prompt_id = fingerprints.of_parts("prompt", normalise(source.question))
    problem = Problem(
        prompt_id, source.question, source.answer, dict(source.metadata)
    )
    problems.setdefault(prompt_id, problem)
  if not problems:
    raise ValueError(
        f"prompts: no problem in {_where(settings)}; expected at least one,"
        " check prompts.count and prompts.path."
    )
  held_out = {
      prompt_id
      for prompt_id in problems
      if settings.eval_count and prompt_id < settings.eval_share * 2**63
  }
  train = [problems[key] for key in problems if key not in held_out]
  evaluation = [problems[key] for key in sorted(held_out)]
  if len(evaluation) < settings.eval_count:
    raise ValueError(
        f"prompts.eval_count: expected {settings.eval_count} problems held out"
        f" of {len(problems)} distinct ones, found {len(evaluation)}; raise"
        " prompts.count or prompts.eval_share, or lower prompts.eval_count."
    )
  if not train:
    raise ValueError(
        f"prompts: no problem to train on in {_where(settings)}; expected at"
        " least one, check prompts.count and prompts.path."
    )
  return train, evaluation[: settings.eval_count]


def render(
    problems: Sequence[Problem],
    settings: PromptSettings,
    tokenizer: tokenizer_lib.Tokenizer,
) -> list[Prompt]:
  """Poses problems through the chat template, once, as token ids.

  Raises:
    ValueError: a prompt is longer than `max_tokens` (unless `drop_long`), or
      spells a control token of the tokenizer.
  """
  rendered = []
  for problem in problems:
    user = settings.template.replace("{question}", problem.question)
    spelt = [token for token in tokenizer.special_tokens if token in user]
    if spelt:
      raise ValueError(
          f"prompt {problem.question[:40]!r}… spells the control token"
          f" {spelt[0]!r}; delete the problem."
      )
    messages = [{"role": "user", "content": user}]
    if settings.system:
      messages.insert(0, {"role": "system", "content": settings.system})
    tokens = np.asarray(tokenizer.apply_chat_template(messages), np.int32)
    rendered.append(
        Prompt(
            problem.prompt_id,
            tokens,
            problem.question,
            problem.answer,
            problem.metadata,
        )
    )
  return _within_limit(rendered, settings)


def fingerprint(prompts: Sequence[Prompt]) -> str:
  """Sixteen hexadecimal digits: ids, tokens and answers, in order."""
  digest = hashlib.sha256()
  for prompt in prompts:
    digest.update(f"{prompt.prompt_id}:{prompt.tokens.tolist()}:".encode())
    answer = prompt.answer.encode("utf-8", "surrogatepass")
    digest.update(f"{len(answer)}:".encode() + answer)
  return digest.hexdigest()[:16]


def _read(settings: PromptSettings, seed: int) -> Iterator[sources.Source]:
  """Chooses the reader."""
  if settings.source == "reasoning_gym":
    return sources.from_reasoning_gym(
        settings.task, settings.arguments(), seed, settings.count
    )
  readers = {"jsonl": sources.from_json_file, "tfds": sources.from_tfds}
  return readers[settings.source](
      settings.path,
      settings.question_field,
      settings.answer_field,
      settings.count,
  )


def _where(settings: PromptSettings) -> str:
  """Names the source for messages."""
  procedural = settings.source == "reasoning_gym"
  return settings.task if procedural else repr(settings.path)


def _within_limit(
    prompts: Sequence[Prompt], settings: PromptSettings
) -> list[Prompt]:
  """Drops or refuses prompts longer than the limit."""
  limit = settings.max_tokens
  long = [prompt for prompt in prompts if prompt.tokens.size > limit]
  if not long:
    return list(prompts)
  longest = max(long, key=lambda prompt: prompt.tokens.size)
  if not settings.drop_long:
    raise ValueError(
        f"prompt {longest.text[:40]!r}… has {longest.tokens.size} tokens, the"
        f" limit is {limit} ({len(long)} of {len(prompts)} are longer); raise"
        " prompts.max_tokens or set prompts.drop_long."
    )
  kept = [prompt for prompt in prompts if prompt.tokens.size <= limit]
  if not kept:
    raise ValueError(
        f"prompts.max_tokens: all {len(long)} prompts are longer than {limit}"
        " tokens; raise it."
    )
  logging.warning(
      "%d of %d prompts are longer than %d tokens and were dropped.",
      len(long),
      len(prompts),
      limit,
  )
  return kept
