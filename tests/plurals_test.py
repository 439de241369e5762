"""A noun follows its number."""

from jaxrl_llm import plurals


def test_one_is_singular_and_all_else_plural():
  said = [plurals.count(number, "record") for number in (0, 1, 2)]
  assert said == ["0 records", "1 record", "2 records"]
