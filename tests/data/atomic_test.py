"""What is said of a JSON file that is damaged."""

import pytest

from jaxrl_llm.data import atomic


@pytest.mark.parametrize(
    "content, expected",
    [
        (b'{"a": 1', "expected JSON, found a damaged file"),
        (b"", "expected JSON, found a damaged file"),
        (b"\xff\xfe", "expected JSON, found a damaged file"),
        (b"[1]", "expected a JSON object, found a list"),
        (b'{"a": 1}', "expected a, b in it, found no b"),
    ],
)
def test_damage_is_named_with_path_and_remedy(content, expected, tmp_path):
  path = tmp_path / "run.json"
  path.write_bytes(content)
  with pytest.raises(ValueError, match="; restore it") as caught:
    atomic.read_json(path, ("a", "b"), "restore it")
  assert str(caught.value).startswith(f"{path}: {expected}")


def test_what_was_written_is_read(tmp_path):
  path = tmp_path / "run.json"
  atomic.write_json(path, {"b": [1, None], "a": "ü"})
  assert atomic.read_json(path, ("a",), "") == {"b": [1, None], "a": "ü"}
