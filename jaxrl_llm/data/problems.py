"""Reads problems (question, answer) from reasoning-gym, files and TFDS.

Every reader yields `Source` items in a fixed order. What is wrong with a
source is said in one line that names the item.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import difflib
import inspect
import json
import os
import pathlib
import re
from typing import Any

# What json.loads raises: bad syntax, a number of thousands of digits, nesting.
_UNREADABLE = (ValueError, RecursionError)
_BOX = re.compile(r"\\(?:boxed|fbox)\{")


@dataclasses.dataclass(frozen=True)
class Source:
  """One problem as its source has it.

  Attributes:
    name: where it comes from, for messages ("train.jsonl:17").
    question: the problem.
    answer: the final answer alone.
    metadata: what the source's own verifier needs.
  """

  name: str
  question: str
  answer: str
  metadata: Mapping[str, Any]


def from_reasoning_gym(
    task: str, task_args: Mapping[str, Any], seed: int, count: int
) -> Iterator[Source]:
  """Yields `count` items of a procedural task; item i is seeded seed + i.

  Raises:
    ValueError: unknown task or argument, named with the nearest known one.
  """
  # Two seconds of imports that file sources do not need.
  import reasoning_gym  # pylint: disable=g-import-not-at-top
  from reasoning_gym import factory  # pylint: disable=g-import-not-at-top

  if task not in factory.DATASETS:
    raise ValueError(
        f"prompts.task: reasoning-gym has no task {task!r};"
        + _nearest(task, factory.DATASETS)
    )
  known = inspect.signature(factory.DATASETS[task][1]).parameters
  for name in task_args:
    if name not in known or name in ("seed", "size"):
      raise ValueError(
          f"prompts.task_args: task {task!r} takes no {name!r} here;"
          + _nearest(name, set(known) - {"seed", "size"})
      )
  try:
    items = reasoning_gym.create_dataset(
        task, seed=seed, size=count, **task_args
    )
  except (AssertionError, TypeError, ValueError) as error:
    raise ValueError(
        f"prompts.task_args: task {task!r} refuses {dict(task_args)}: {error}"
    ) from error
  for index in range(count):
    try:
      item = items[index]
    except (
        ArithmeticError, AssertionError, LookupError, TypeError, ValueError
    ) as error:
      raise ValueError(
          f"prompts.task_args: task {task!r} makes no item {index} of"
          f" {dict(task_args)}: {error}"
      ) from error
    answer = item["answer"]
    yield Source(
        name=f"{task}[{index}]",
        question=item["question"],
        answer="" if answer is None else str(answer),
        metadata=item["metadata"],
    )


def from_json_file(
    path: str, question_field: str, answer_field: str, count: int
) -> Iterator[Source]:
  """Yields the first `count` records of a file of JSON lines or a JSON array.

  Args:
    path: one JSON object a line, or one array of objects.
    question_field: field of the problem; several, comma-separated, are joined.
    answer_field: field of the answer; empty guesses (see `final_answer`).
    count: most records read; 0 reads all.

  Raises:
    FileNotFoundError, ValueError: naming the file, the line and the fields.
  """
  if not os.path.isfile(path):
    raise FileNotFoundError(
        f"prompts.path: expected a file of JSON records, found nothing at"
        f" {path!r}; set prompts.path."
    )
  for index, (name, record) in enumerate(_json_records(pathlib.Path(path))):
    if count and index == count:
      return
    yield _from_record(name, record, question_field, answer_field)


def from_tfds(
    path: str, question_field: str, answer_field: str, count: int
) -> Iterator[Source]:
  """Yields the first `count` records of a prepared TFDS folder.

  The split "train" is read, or the only one there is.

  Raises:
    FileNotFoundError, ValueError: no such folder, split or format.
  """
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  if not os.path.isfile(os.path.join(path, "dataset_info.json")):
    raise FileNotFoundError(
        "prompts.path: expected a prepared TFDS folder with dataset_info.json,"
        f" found none at {path!r}; give the version folder (…/1.0.0)."
    )
  builder = tfds.builder_from_directory(path)
  splits = sorted(builder.info.splits)
  if "train" not in splits and len(splits) != 1:
    raise ValueError(
        f"{path}: expected a split 'train' or a single split, found {splits};"
        " prepare the folder with one of them."
    )
  split = "train" if "train" in splits else splits[0]
  if builder.info.file_format.value != "array_record":
    raise ValueError(
        f"{path}: expected array_record files, found"
        f" {builder.info.file_format.value}; convert the folder with"
        " `tfds convert_format --out_file_format=array_record`."
    )
  records = builder.as_data_source(split)
  for index in range(min(count or len(records), len(records))):
    record = {
        key: value.decode("utf-8") if isinstance(value, bytes) else value
        for key, value in records[index].items()
    }
    yield _from_record(
        f"{path}:{split}[{index}]", record, question_field, answer_field
    )


def _json_records(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yields (name, record) of a JSON array or of JSON lines."""
  try:
    text = path.read_text("utf-8-sig")  # Some editors open with a mark.
  except UnicodeDecodeError as error:
    raise ValueError(
        f"{path}: not UTF-8 ({error}); save the file as UTF-8."
    ) from error
  if text.lstrip().startswith("["):
    try:
      records = json.loads(text)
    except _UNREADABLE as error:
      raise ValueError(f"{path}: not a JSON array ({error}).") from error
    for index, record in enumerate(records):
      yield f"{path}[{index}]", record
    return
  # Not str.splitlines: U+2028 and its like may stand inside a JSON string.
  for number, line in enumerate(text.split("\n"), start=1):
    if not line.strip():
      continue
    try:
      yield f"{path}:{number}", json.loads(line)
    except _UNREADABLE as error:
      raise ValueError(
          f"{path}:{number}: expected one JSON object a line, found"
          f" {line[:40]!r} ({error}); mend or delete the line."
      ) from error


def _from_record(
    name: str, record: Any, question_field: str, answer_field: str
) -> Source:
  """Takes question and answer out of a record by field name."""
  if not isinstance(record, Mapping):
    raise ValueError(
        f"{name}: expected an object with fields, found"
        f" {type(record).__name__}; see prompts.question_field."
    )
  fields = [field.strip() for field in question_field.split(",")]
  if fields == ["question"] and "question" not in record:
    fields = ["problem"]  # The MATH shape.
  for field in fields + ([answer_field] if answer_field else []):
    if field not in record:
      key = "answer_field" if field == answer_field else "question_field"
      raise ValueError(
          f"{name}: no field {field!r}, found {sorted(record)}; set"
          f" prompts.{key}."
      )
  question = "\n".join(_text(record[field]) for field in fields)
  if answer_field:
    answer = final_answer(_text(record[answer_field]))
  else:
    answer = _guessed_answer(record)
  if re.search("[\ud800-\udfff]", question + answer):
    raise ValueError(
        f"{name}: holds half of a surrogate pair (as \\ud800), which is no"
        " character; mend or delete the item."
    )
  return Source(name, question.strip(), answer, {})


def _guessed_answer(record: Mapping[str, Any]) -> str:
  """Finds the answer of a record of the GSM8K or MATH shape."""
  for field in ("answer", "solution"):
    if field in record and _text(record[field]).strip():
      return final_answer(_text(record[field]))
  return ""


def final_answer(text: str) -> str:
  """Reduces a worked solution to its final answer.

  What follows the last `####` (GSM8K); else what the last complete box holds
  (MATH); else the text itself.
  """
  if "####" in text:
    return text.rpartition("####")[2].strip()
  return _last_box(text) or text.strip()


def _last_box(text: str) -> str:
  """Returns the content of the last balanced \\boxed{…} or \\fbox{…}."""
  starts = [match.end() for match in _BOX.finditer(text)]
  for start in reversed(starts):
    depth = 1
    for index in range(start, len(text)):
      depth += {"{": 1, "}": -1}.get(text[index], 0)
      if not depth:
        return text[start:index].strip()
  return ""


def _text(value: Any) -> str:
  """Writes a field as text: 51.0 as "51", a list as one item a line."""
  if value is None:
    return ""
  if isinstance(value, float) and value.is_integer():
    return str(int(value))
  if isinstance(value, (list, tuple)):
    return "\n".join(map(_text, value))
  return str(value)


def _nearest(name: str, known: Any) -> str:
  """Ends an error message with the nearest known name."""
  near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0)
  return f" the nearest is {near[0]!r}." if near else " it takes none."
