"""compiling.py: what the compiler says where memory does not suffice."""

import pytest

from jaxrl_llm.slices import compiling

GIB = 2**30


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory"
        " required for HLO temporaries (38.50G) exceeds available HBM"
        " (15.75G).",
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of"
        " memory in memory space hbm. Used 38.50G of 15.75G hbm. Exceeded hbm"
        " capacity by 22.75G.",
    ],
)
def test_sizes_are_read_from_either_wording(message):
  assert compiling.exhausted(message) == (38.5 * GIB, 15.75 * GIB)


def test_another_error_is_none_of_memory():
  assert compiling.exhausted("INTERNAL: RET_CHECK failure") is None
