"""Files of rows: found, read, refused, written whole."""

import json

import pyarrow as pa
import pytest

from jaxrl_llm.data import dump_files


def test_files_come_in_the_order_of_their_numbers(tmp_path):
  for name in ("10.jsonl", "9.jsonl", "a.txt"):
    (tmp_path / name).touch()
  (tmp_path / "8.jsonl").mkdir()
  found = dump_files.find(f"{tmp_path}/*.jsonl, {tmp_path}/a.txt")
  assert [path.name for path in found] == ["9.jsonl", "10.jsonl", "a.txt"]


def test_name_with_a_bracket_is_a_file_if_there_is_one(tmp_path):
  path = tmp_path / "run[1].jsonl"
  path.touch()
  assert dump_files.find(str(path)) == [path]


@pytest.mark.parametrize(
    "names,expected",
    [
        ("", "expected JSON-lines or Parquet files"),
        ("{}/none.jsonl", "there is no file .*none.jsonl"),
        ("{}/*.parquet", "there is no file"),
    ],
)
def test_files_that_are_not_there_are_named(names, expected, tmp_path):
  with pytest.raises(FileNotFoundError, match=expected):
    dump_files.find(names.format(tmp_path))


def test_a_file_named_twice_is_refused(tmp_path):
  (tmp_path / "1.jsonl").touch()
  with pytest.raises(ValueError, match="1.jsonl is named twice"):
    dump_files.find(f"{tmp_path}/1.jsonl,{tmp_path}/*.jsonl")


def test_lines_that_are_no_objects_are_named_by_number(tmp_path):
  path = tmp_path / "d.jsonl"
  # U+2028 ends no line of JSON.
  path.write_bytes(
      b'{"a": "\xe2\x80\xa8"}\n\n[1]\n{"a"\n"x"\n\xff\n{"b": 1}'
  )
  rows = list(dump_files.read(path))
  assert [place for place, _ in rows] == [
      f"{path}:{number}" for number in (1, 3, 4, 5, 6, 7)
  ]
  good, a_list, cut, a_text, bytes_, last = (row for _, row in rows)
  assert good == {"a": "\u2028"} and last == {"b": 1}
  assert "expected a JSON object, found a list" in str(a_list)
  assert str(cut).startswith("not JSON") and "found a text" in str(a_text)
  assert str(bytes_).startswith("not JSON")


def test_jsonl_is_written_whole_or_not_at_all(tmp_path):
  path = tmp_path / "d.jsonl"

  def rows():
    yield {"b": 2, "a": "\u2028\n"}
    assert not path.exists()
    yield {"a": 1}

  dump_files.write_jsonl(path, rows())
  lines = path.read_text("utf-8").split("\n")
  assert [json.loads(line) for line in lines[:-1]] == [
      {"a": "\u2028\n", "b": 2}, {"a": 1},
  ]
  other = tmp_path / "e.jsonl"
  with pytest.raises(ValueError):
    dump_files.write_jsonl(other, [{"a": float("nan")}])
  assert not other.exists()


def test_parquet_is_read_back_by_row(tmp_path, monkeypatch):
  monkeypatch.setattr(dump_files, "_ROWS", 2)
  path = tmp_path / "d.parquet"
  rows = [{"a": n, "b": [n] * n} for n in range(5)]
  columns = [("a", pa.int64()), ("b", pa.list_(pa.int32()))]
  dump_files.write_parquet(path, iter(rows), columns)
  found = list(dump_files.read(path))
  assert [row for _, row in found] == rows
  assert found[4][0] == f"{path}:5"
  assert [entry.name for entry in tmp_path.iterdir()] == ["d.parquet"]


def test_file_that_is_no_parquet_is_named(tmp_path):
  path = tmp_path / "d.parquet"
  path.write_text("{}\n")
  with pytest.raises(ValueError, match="d.parquet: no Parquet file"):
    list(dump_files.read(path))
