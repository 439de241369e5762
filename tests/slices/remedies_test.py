"""remedies.py: what is suggested fits by the stated growth of memory."""

import dataclasses

from jaxrl_llm.models import presets
from jaxrl_llm.slices import remedies

GIB = 2**30
# 16 GiB of state over 16 chips is 1 GiB each; the other 19 GiB the 4
# rows that each chip works on.
FOUND = remedies.Situation(
    config=presets.preset("qwen3-0.6b"),
    mesh={"data": 1, "fsdp": 16, "tensor": 1},
    state=16 * GIB,
    axes=("fsdp", "tensor"),
    rows=64,
    rows_key="train.rows_per_microbatch",
    total=20 * GIB,
    memory=16 * GIB,
)


def test_half_the_rows_take_half_of_what_is_no_state():
  # 1 + 19 / 2 = 10.5
  first = remedies.suggest(FOUND)[0]
  assert first == "--config.train.rows_per_microbatch=32 (about 10.5 GiB)"


def test_rows_stay_a_multiple_of_what_they_are_spread_over():
  # Half of 48 rows is 24; 16 is the next multiple of 16: 1 + 19 / 3.
  first = remedies.suggest(dataclasses.replace(FOUND, rows=48))[0]
  assert first == "--config.train.rows_per_microbatch=16 (about 7.3 GiB)"


def test_one_row_per_chip_leaves_another_mesh():
  found = dataclasses.replace(FOUND, rows=16, total=20 * GIB)
  first = remedies.suggest(found)[0]
  # Tensor parallelism over 2: 8 rows, each on two chips, 1 + 19 / 2.
  assert first == (
      "--config.mesh=data=1,fsdp=8,tensor=2"
      " --config.train.rows_per_microbatch=8 (about 10.5 GiB)"
  )


def test_a_mesh_that_does_not_divide_the_model_is_not_suggested():
  # 8 key heads lie on 8 chips at most; with 16 rows on one chip group the
  # state alone, 16 GiB of 8, would fit nothing else.
  found = dataclasses.replace(FOUND, rows=16, total=300 * GIB)
  assert all("tensor=16" not in line for line in remedies.suggest(found))


def test_a_state_that_is_whole_over_fsdp_is_spread_or_divides_over_tensor():
  # 16 GiB on each chip, and 4 for as many rows per chip on any mesh. Spread
  # over the 16 chips, 1 + 4; over tensor=2, 8 + 4. Fewer rows leave the 16.
  found = dataclasses.replace(FOUND, axes=("tensor",), memory=13 * GIB)
  assert remedies.suggest(found)[:2] == [
      "--config.generation.spread_weights=True (about 5.0 GiB)",
      "--config.mesh=data=1,fsdp=8,tensor=2 (about 12.0 GiB)",
  ]


def test_a_state_that_no_mesh_holds_wants_a_larger_slice():
  # The memory of 32 chips; with room for the rest, 64.
  found = dataclasses.replace(FOUND, state=512 * GIB, total=52 * GIB)
  line, = remedies.suggest(found)
  assert "32.0 chips' memory" in line and "64 or more" in line
