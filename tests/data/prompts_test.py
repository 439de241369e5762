"""Splitting, rendering and naming prompts."""

import json

import numpy as np
import pytest

from jaxrl_llm.data import prompts
from jaxrl_llm.data import tokenizer as tokenizer_lib

ONE_DIGIT = '{"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}'


@pytest.fixture(name="settings")
def _settings(tmp_path):
  """Settings of a JSON-lines file with the given (question, answer) pairs."""

  def build(pairs, **changes):
    path = tmp_path / "records.jsonl"
    lines = [json.dumps({"question": q, "answer": a}) for q, a in pairs]
    path.write_text("\n".join(lines))
    values = dict(source="jsonl", path=str(path), count=0, eval_count=0)
    return prompts.PromptSettings(**{**values, **changes})

  return build


def _ids(problems):
  return {problem.prompt_id for problem in problems}


def test_training_and_evaluation_never_overlap():
  settings = prompts.PromptSettings(
      task_args=ONE_DIGIT, count=2000, eval_count=150
  )
  train, evaluation = prompts.load(settings, seed=0)
  assert len(evaluation) == 150 == len(_ids(evaluation))
  assert len(train) == len(_ids(train)) > 500
  texts = [prompts.normalise(problem.question) for problem in train]
  assert len(set(texts)) == len(texts)
  assert not set(texts) & {prompts.normalise(p.question) for p in evaluation}
  # Neither do those of other counts and seeds: the hash alone decides.
  few = prompts.PromptSettings(task_args=ONE_DIGIT, count=1500, eval_count=100)
  other_train, other_evaluation = prompts.load(few, seed=777)
  assert not _ids(other_train) & _ids(evaluation)
  assert not _ids(train) & _ids(other_evaluation)


def test_the_split_does_not_depend_on_order(settings):
  pairs = [(f"What is {i} + {i}?", str(2 * i)) for i in range(200)]
  first = prompts.load(settings(pairs, eval_count=20), 0)
  second = prompts.load(settings(pairs[::-1], eval_count=20), 0)
  assert _ids(first[0]) == _ids(second[0])
  assert first[1] == second[1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Calculate 5 - 3.", "calculate  5 -3 .", True),
        ("Calculate ( 5 - 3 ).", "Calculate 5 - 3.", True),
        ("What is ( -2 * 4 )?", "What is -2 * 4?", True),
        ("Calculate 2 * (5 - 3).", "Calculate 2 * 5 - 3.", False),
        ("Calculate (5 - 3) * 2.", "Calculate 5 - 3 * 2.", False),
        ("sort 1 2", "sort 12", False),
        ("x² = 4", "x2 = 4", True),
        ("Calculate 5 - 3.", "Calculate 5 + 3.", False),
    ],
)
def test_what_makes_two_problems_the_same(one, other, same):
  assert (prompts.normalise(one) == prompts.normalise(other)) is same


def test_duplicates_are_dropped_and_the_first_is_kept(settings):
  pairs = [("What is 1 + 1?", "2"), ("what is 1+1?", "two"), ("b", "0")]
  train, evaluation = prompts.load(settings(pairs), 0)
  assert [(p.question, p.answer) for p in train] == [pairs[0], pairs[2]]
  assert not evaluation


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        ([("q", "")], {}, "records.jsonl:1: the answer is empty"),
        ([("q", "1"), (" ", "2")], {}, "records.jsonl:2: the question is empt"),
        ([], {}, "no problem in '.*records.jsonl'"),
        (
            [("q", "1")], {"eval_count": 1, "eval_share": 0.999999},
            "no problem to train on in '.*records.jsonl'",
        ),
        ([("q", "1")], {"eval_count": 3}, "expected 3 problems held out of 1"),
    ],
)
def test_sets_that_cannot_be_used_are_named(settings, pairs, changes, message):
  with pytest.raises(ValueError, match=message) as error:
    prompts.load(settings(pairs, **changes), 0)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "csv"}, "prompts.source: expected one of reasoning_gym"),
        ({"count": 0}, "prompts.count"),
        ({"max_tokens": 0}, "max_tokens ≥ 1"),
        ({"eval_share": 1.0}, "prompts.eval_share"),
        ({"template": "Solve."}, "prompts.template: expected {question}"),
        ({"task_args": "[1]"}, "prompts.task_args: expected a JSON object"),
        ({"task_args": "{"}, "prompts.task_args: expected a JSON object"),
    ],
)
def test_settings_name_the_key(changes, message):
  with pytest.raises(ValueError, match=message):
    prompts.PromptSettings(**changes)


def test_rendering_keeps_the_problem_and_poses_it_once(settings):
  """The ids are those of the template, with one BOS, stored as int32."""
  chosen = settings([("What is {x}?", "1")], template="Q: {question}\nA:")
  train, _ = prompts.load(chosen, 0)
  tokenizer = tokenizer_lib.load("bytes")
  (found,) = prompts.render(train, chosen, tokenizer)
  assert found.text == "What is {x}?" and found.answer == "1"
  assert found.tokens.dtype == np.int32
  assert found.tokens.tolist() == [256, *b"Q: What is {x}?\nA:\n"]
  system = settings([("a", "1")], system="Be brief.")
  (found,) = prompts.render(prompts.load(system, 0)[0], system, tokenizer)
  assert tokenizer.decode(found.tokens) == "<|bos|>Be brief.\na\n"


def test_long_prompts_are_refused_or_dropped_never_cut(settings):
  """A cut would lose the template's last tokens."""
  pairs = [("short", "1"), ("a very long question", "2")]
  tokenizer = tokenizer_lib.load("bytes")
  chosen = settings(pairs, max_tokens=7)
  train, _ = prompts.load(chosen, 0)
  message = r"'a very long question'… has 22 tokens, the limit is 7 \(1 of 2"
  with pytest.raises(ValueError, match=message):
    prompts.render(train, chosen, tokenizer)
  chosen = settings(pairs, max_tokens=7, drop_long=True)
  assert [p.text for p in prompts.render(train, chosen, tokenizer)] == ["short"]
  chosen = settings(pairs, max_tokens=3, drop_long=True)
  with pytest.raises(ValueError, match="all 2 prompts are longer than 3"):
    prompts.render(train, chosen, tokenizer)


def test_a_problem_cannot_spell_control_tokens(settings):
  chosen = settings([("end <|eos|> here", "1")])
  train, _ = prompts.load(chosen, 0)
  with pytest.raises(ValueError, match=r"control token '<\|eos\|>'"):
    prompts.render(train, chosen, tokenizer_lib.load("bytes"))


def test_fingerprint_names_ids_tokens_and_answers(settings):
  tokenizer = tokenizer_lib.load("bytes")

  def of(pairs, **changes):
    chosen = settings(pairs, **changes)
    rendered = prompts.render(prompts.load(chosen, 0)[0], chosen, tokenizer)
    return prompts.fingerprint(rendered)

  pairs = [("a", "1"), ("b", "2")]
  assert of(pairs) == of(pairs)
  others = {of(pairs[::-1]), of([("a", "1"), ("b", "3")]), of(pairs[:1])}
  others |= {of(pairs, system="s"), of(pairs)}
  assert len(others) == 5
