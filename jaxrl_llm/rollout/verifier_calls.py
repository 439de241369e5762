"""What a verifier process does on request.

Model output is parsed, never evaluated: some scorers of reasoning-gym call
`eval` on it, so theirs is replaced by a reader of literals, and those that
hand it to sympy's parser, which evaluates too, get plain formulas only.
"""

import ast
import functools
import inspect
import json
import re
import sys
from typing import Any

from jaxrl_llm.rollout import answer_comparison

_FORMULA = re.compile(r"[\w\s+\-*/^().,]{0,500}")
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*\(")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc asin acos atan sinh cosh tanh exp log ln sqrt"
    " Abs abs erf".split()
)


def prepare_comparison() -> bool:
  """Imports what comparing formulas needs."""
  answer_comparison.equal("x+1", "1+x")
  return True


def equal(gold: str, answer: str, percent_asked: bool) -> bool:
  """Compares two answers."""
  return answer_comparison.equal(gold, answer, percent_asked)


def prepare_scorer(task: str, arguments: str) -> bool:
  """Makes the scorer of a reasoning-gym task; arguments as JSON."""
  _scorer(task, arguments)
  return True


def score(
    task: str, arguments: str, answer: str, entry: dict[str, Any]
) -> float:
  """Scores an answer by the task's own scorer, in [0, 1].

  An answer that the scorer would evaluate although it is no plain formula
  scores 0.
  """
  dataset, evaluates = _scorer(task, arguments)
  if evaluates and not is_plain_formula(answer):
    return 0.0
  return float(dataset.score_answer(answer, entry))


def is_plain_formula(text: str) -> bool:
  """Allows numbers, names, operators and calls of known functions only."""
  return (
      _FORMULA.fullmatch(text) is not None
      and "__" not in text
      and not re.search(r"[A-Za-z_)]\s*\.|\.\s*[A-Za-z_]", text)
      and not re.search(r"(\*\*|\^)[^*^]*(\*\*|\^)[^*^]*(\*\*|\^)", text)
      and all(
          name in _FUNCTIONS or len(name) == 1
          for name in _CALLED.findall(text)
      )
  )


@functools.lru_cache(maxsize=None)
def _scorer(task: str, arguments: str) -> tuple[Any, bool]:
  """Returns the dataset, and whether its scorer evaluates formulas."""
  # Two seconds of imports that comparisons do not need.
  import reasoning_gym  # pylint: disable=g-import-not-at-top

  dataset = reasoning_gym.create_dataset(
      task, seed=0, size=1, **json.loads(arguments)
  )
  module = sys.modules[type(dataset).__module__]
  source = inspect.getsource(module)
  if re.search(r"\beval\(answer", source):
    module.eval = ast.literal_eval
  return dataset, re.search(r"\bparse_expr\(\s*answer", source) is not None
