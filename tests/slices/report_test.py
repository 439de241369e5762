"""What the report of a slice says of numbers."""

import pytest

from jaxrl_llm.slices import report


@pytest.mark.parametrize("count, said", [
    (13_216, "0.0132 million"),
    (99_900_000, "99.9 million"),
    (134_515_008, "0.13 billion"),
    (8_030_261_248, "8.03 billion"),
])
def test_parameters_are_counted_in_a_unit_that_shows_them(count, said):
  assert report.parameters(count) == f"{said} parameters"
