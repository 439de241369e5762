"""supports.py on masses that are added up by hand."""

import numpy as np
import pytest

from jaxrl_llm.training import supports

# The rest of the second row, 0.4, is on ids that nobody asked for.
TOP = np.log([[0.5, 0.3, 0.15, 0.05], [0.2, 0.2, 0.1, 0.1]])


@pytest.mark.parametrize("kind, number, kept", [
    ("top_k", 1, [0.5, 0.2]),
    ("top_k", 3, [0.95, 0.5]),
    # The ids up to the one that reaches 0.75; not reached: 0.75 itself.
    ("top_p", 0.75, [0.8, 0.75]),
    # Of the first row 0.15 / 0.5 is 0.3 and is in, 0.05 / 0.5 is out.
    ("min_p", 0.25, [0.95, 0.6]),
    ("min_p", 0.55, [0.8, 0.4]),
])
def test_kept_mass(kind, number, kept):
  found = supports.log_kept(TOP, kind, number)
  np.testing.assert_allclose(np.exp(found), kept, rtol=1e-12)


def test_candidates_reach_no_further_than_what_is_known():
  found = supports.candidates(3)
  assert [n for kind, n in found if kind == "top_k"] == [1, 2, 3]
  assert {kind for kind, _ in found} == {"top_k", "top_p", "min_p"}
