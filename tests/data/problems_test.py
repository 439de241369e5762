"""Readers of problem sources: shapes of records and what they refuse."""

import json

import pytest
import tensorflow_datasets as tfds

from jaxrl_llm.data import problems


def _file(tmp_path, *lines):
  path = tmp_path / "records.jsonl"
  path.write_text("\n".join(lines) + "\n", "utf-8")
  return str(path)


def _read(path, question_field="question", answer_field="", count=0):
  return list(
      problems.from_json_file(path, question_field, answer_field, count)
  )


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        ({"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 2"}, "2"),
        ({"question": "q", "answer": "a #### 3\n#### 1,000 "}, "1,000"),
        ({"problem": "q", "answer": r"\frac{1}{2}"}, r"\frac{1}{2}"),
        ({"problem": "q", "solution": r"\boxed{2}, \boxed{x_{3}}."}, "x_{3}"),
        ({"problem": "q", "solution": r"$\fbox{4}$, not \boxed{5"}, "4"),
        ({"question": "q", "answer": 0}, "0"),
        ({"question": "q", "answer": 51.0}, "51"),
        ({"question": "q", "answer": 0.5}, "0.5"),
    ],
)
def test_gsm8k_and_math_shapes(tmp_path, record, answer):
  """An answer of 0 is an answer."""
  (found,) = _read(_file(tmp_path, json.dumps(record)))
  assert (found.question, found.answer) == ("q", answer)


def test_several_question_fields_and_an_array(tmp_path):
  """SVAMP and AQuA: a JSON array, a joined question, a list of options."""
  record = {"Body": "Dan had 3.", "Question": "?", "O": ["A)", 2]}
  record["Answer"] = 1.0
  path = tmp_path / "array.json"
  path.write_text(json.dumps([record, record]))
  found = _read(str(path), "Body, Question,O", "Answer")
  assert [source.question for source in found] == ["Dan had 3.\n?\nA)\n2"] * 2
  assert found[1].name.endswith("array.json[1]") and found[1].answer == "1"


def test_count_limits_and_blank_lines_do_not_count(tmp_path):
  fields = {"question": "a\u2028b", "answer": "2"}
  record = json.dumps(fields, ensure_ascii=False)
  path = _file(tmp_path, record, "", record, record)
  assert len(_read(path)) == 3 and len(_read(path, count=2)) == 2
  assert _read(path)[0].question == "a\u2028b"


def test_what_is_wrong_with_a_file_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match="nowhere.*set prompts.path"):
    _read(str(tmp_path / "nowhere"))
  good = json.dumps({"question": "q", "answer": "2"})
  with pytest.raises(ValueError, match=r"records.jsonl:2: .*'\{broken'"):
    _read(_file(tmp_path, good, "{broken"))
  with pytest.raises(ValueError, match="jsonl:1: .*found int"):
    _read(_file(tmp_path, "3"))
  with pytest.raises(ValueError, match="no field 'query'.*question_field"):
    _read(_file(tmp_path, good), "query")
  with pytest.raises(ValueError, match="no field 'gold'.*answer_field"):
    _read(_file(tmp_path, good), answer_field="gold")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "q", "answer": ' + "9" * 5000 + "}", "jsonl:2: .*digit"),
        ('{"a":' * 100_000, "jsonl:2: .*recursion"),
        ('{"question": "\\ud800", "answer": "2"}', "jsonl:2: .*surrogate"),
        ('{"question": "q", "answer": "\\udfff"}', "jsonl:2: .*surrogate"),
    ],
)
def test_what_json_or_unicode_cannot_hold_is_named(tmp_path, line, message):
  good = json.dumps({"question": "q", "answer": "2"})
  with pytest.raises(ValueError, match=message) as error:
    _read(_file(tmp_path, good, line))
  assert type(error.value) is ValueError  # Worded here, not by a library.


def test_files_of_other_encodings(tmp_path):
  """A byte-order mark is no part of the first record; latin-1 is refused."""
  path = tmp_path / "records.jsonl"
  path.write_text(json.dumps({"question": "q", "answer": "2"}), "utf-8-sig")
  assert _read(str(path))[0].question == "q"
  path.write_bytes('{"question": "é"}'.encode("latin-1"))
  with pytest.raises(ValueError, match="records.jsonl: not UTF-8") as error:
    _read(str(path))
  assert type(error.value) is ValueError


def test_reasoning_gym_seeds_item_i_with_seed_plus_i():
  arguments = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
  zero, one = (
      list(problems.from_reasoning_gym("chain_sum", arguments, seed, 5))
      for seed in (0, 1)
  )
  assert [item.question for item in zero[1:]] == [
      item.question for item in one[:-1]
  ]
  assert zero[0].name == "chain_sum[0]" and "difficulty" in zero[0].metadata


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("chain_sums", {}, "no task 'chain_sums'; the nearest is 'chain_sum'"),
        ("chain_sum", {"min_term": 2}, "'min_term'.*nearest is 'min_terms'"),
        ("chain_sum", {"seed": 2}, "takes no 'seed'"),
        ("chain_sum", {"min_terms": -1}, "refuses .*min_terms"),
        ("gcd", {"max_value": 2.5}, "task 'gcd' makes no item 0 of .*2.5"),
        ("gcd", {"max_value": float("inf")}, "makes no item 0 of .*inf"),
    ],
)
def test_reasoning_gym_misfits(task, arguments, message):
  """An unknown name comes with the nearest known one."""
  with pytest.raises(ValueError, match=message):
    list(problems.from_reasoning_gym(task, arguments, 0, 1))


def _write_tfds(path, splits):
  path.mkdir()
  described = tfds.core.DatasetInfo(
      builder=tfds.core.DatasetIdentity(
          name="words", version="1.0.0", data_dir=str(path), module_name=""
      ),
      features=tfds.features.FeaturesDict(
          {"text": tfds.features.Text(), "gold": tfds.features.Text()}
      ),
  )
  writer = tfds.core.SequentialWriter(described, 2, file_format="array_record")
  writer.initialize_splits(list(splits))
  for split in splits:
    examples = [
        {"text": f"{split} é{i}", "gold": f"#### {i}"} for i in range(3)
    ]
    writer.add_examples({split: examples})
  writer.close_all()
  return str(path)


def test_tfds_folder_with_field_names(tmp_path):
  path = _write_tfds(tmp_path / "words", ["test", "train"])
  found = list(problems.from_tfds(path, "text", "gold", 0))
  assert [(item.question, item.answer) for item in found] == [
      (f"train é{i}", str(i)) for i in range(3)
  ]
  assert len(list(problems.from_tfds(path, "text", "gold", 2))) == 2
  only = _write_tfds(tmp_path / "only", ["validation"])
  assert len(list(problems.from_tfds(only, "text", "gold", 0))) == 3


def test_what_is_wrong_with_a_tfds_folder_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match="dataset_info.json.*version"):
    list(problems.from_tfds(str(tmp_path), "text", "gold", 0))
  path = _write_tfds(tmp_path / "two", ["a", "b"])
  with pytest.raises(ValueError, match=r"'train'.*\['a', 'b'\]"):
    list(problems.from_tfds(path, "text", "gold", 0))
