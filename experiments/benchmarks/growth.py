"""Measures how the cost of training and decoding grows with their shapes.

Command: .venv/bin/python experiments/benchmarks/growth.py
  [--only=batch,length,decode] [--quick] [--layers=4] [--vocabulary=8192]
  [--slots=16] [--repeats=3] [--folder=FOLDER]
Hardware: 2 CPU cores, 16 GiB of memory; about 10 minutes.
Expect: one JSON line per measurement, then one per law and whether it holds;
  growth.txt and growth.png beside this file, or in --folder (--quick and
  --only write there alone). Exit code 1 where a law does not hold:
  batch: seconds per token of a training step stay within 1.3 times of each
    other from 8 to 256 rows of 256 tokens, and its temporary memory is linear
    in the tokens (grows by a power of them of at most 1.05);
  length: so do the seconds without attention's and update's, from rows of 256
    to rows of 8,192 tokens, at 8,192 tokens per micro-batch, and the memory
    stays (a power of the length of at most 0.1);
  decode: a step with 128 tokens in each slot of 4,096 takes at most half of
    one with 4,096, beyond what both take at the least.

The model is SmolLM2-135M with fewer layers and ids, and random weights. A step
is forward, backward and update through training/step.py, one segment per row,
a micro-batch per update. Attention's share is that of attention timed alone,
forward and backward, times the layers; it is the part that grows with the
square of the length. Temporary memory is what the compiled forward and
backward pass reserves beside its arguments and results. Seconds of a decoding
step are those of the engine; decode's law subtracts the step with the fewest
cached tokens in a cache that is no larger than they are.
"""

import argparse
from collections.abc import Iterator
import dataclasses
import json
import math
import pathlib
import statistics
import sys
from typing import Any

import growth_picture
import jax
import workload

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import state as state_lib

HERE = pathlib.Path(__file__).resolve().parent
PARTS = ("batch", "length", "decode")
Record = dict[str, Any]
FLAT = 1.3


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Shapes that are measured.

  Attributes:
    batches: rows of `row` tokens.
    row: tokens.
    lengths: tokens of a row, at `tokens` per micro-batch.
    tokens: a multiple of every length.
    cached: tokens in each slot while decoding; the last is the capacity.
    slots: responses decoded at once.
    steps: decoding steps per measurement.
    repeats: most repetitions of a measurement.
  """

  batches: tuple[int, ...]
  row: int
  lengths: tuple[int, ...]
  tokens: int
  cached: tuple[int, ...]
  slots: int
  steps: int
  repeats: int

  def repetitions(self, tokens: int) -> int:
    """Fewer of what takes long."""
    return max(1, min(self.repeats, self.repeats * self.tokens // tokens))


def whole(slots: int, repeats: int) -> Sizes:
  return Sizes(
      (8, 16, 32, 64, 128, 256), 256,
      (256, 512, 1024, 2048, 4096, 8192), 8192,
      (128, 256, 512, 1024, 2048, 4096), slots, 32, repeats,
  )


def quick(slots: int, repeats: int) -> Sizes:
  return Sizes(
      (2, 4, 8), 64, (64, 128, 256), 256, (32, 128, 512), slots, 8, repeats
  )


def train_records(
    policy: policy_lib.Policy, sizes: Sizes, parts: tuple[str, ...]
) -> Iterator[Record]:
  """Measures training steps over the batch and over the length."""
  shapes = [
      ("batch", rows, sizes.row) for rows in sizes.batches if "batch" in parts
  ] + [
      ("length", sizes.tokens // tokens, tokens)
      for tokens in sizes.lengths
      if "length" in parts
  ]
  if not shapes:
    return
  state = workload.start_state(policy)
  # The first update compiles.
  first = workload.training(policy, state, *shapes[0][1:])
  state, *_ = workload.train(first, state)
  for part, rows, tokens in shapes:
    state, record = _train_record(policy, state, sizes, rows, tokens)
    yield {"part": part, **record}


def _train_record(
    policy: policy_lib.Policy,
    state: state_lib.TrainState,
    sizes: Sizes,
    rows: int,
    tokens: int,
) -> tuple[state_lib.TrainState, Record]:
  """Measures one shape; attention apart."""
  one = workload.training(policy, state, rows, tokens)
  repeats = sizes.repetitions(rows * tokens)
  passes, updates = [], []
  for _ in range(repeats):
    state, seconds, update = workload.train(one, state)
    passes.append(seconds)
    updates.append(update)
  attend = workload.with_gradient(workload.attend(policy.compute_dtype))
  inputs = workload.attention_inputs(policy.config, rows, tokens)
  attention = policy.config.layers * workload.median_seconds(
      lambda: attend(*inputs), repeats
  )
  seconds, update = map(statistics.median, (passes, updates))
  per_token = lambda value: round(value / (rows * tokens), 9)
  return state, {
      "rows": rows,
      "row_tokens": tokens,
      "tokens": rows * tokens,
      "repeats": repeats,
      "seconds_per_token": per_token(seconds + update),
      "attention_seconds_per_token": per_token(attention),
      "update_seconds_per_token": per_token(update),
      "other_seconds_per_token": per_token(seconds - attention),
      "temporary_mib": round(one.temporary_bytes / 2**20, 1),
  }


def decode_records(
    policy: policy_lib.Policy, sizes: Sizes
) -> Iterator[Record]:
  """Measures decoding steps in a cache of one capacity, and a small one."""
  params = jax.jit(policy.init)(jax.random.key(0))
  params = jax.jit(policy.compute_copy)(params)
  least = sizes.cached[0]
  for cached, capacity in [(least, least)] + [
      (cached, sizes.cached[-1]) for cached in sizes.cached
  ]:
    shapes = workload.Decoding(sizes.slots, capacity, sizes.steps)
    seconds = workload.decode_seconds(
        policy, params, shapes, cached, sizes.repeats
    )
    yield {
        "part": "decode",
        "slots": sizes.slots,
        "capacity": capacity,
        "cached": cached,
        "seconds_per_step": round(seconds, 6),
    }


def laws(records: list[Record]) -> Iterator[Record]:
  """Says of each part whether its cost grows as it should."""
  for part, name, across, power in (
      ("batch", "seconds_per_token", "tokens", 1.05),
      ("length", "other_seconds_per_token", "row_tokens", 0.1),
  ):
    found = [record for record in records if record["part"] == part]
    if found:
      values = [record[name] for record in found]
      yield _law(f"{part}: {name}", max(values) / min(values), FLAT)
      grown, longer = (
          math.log(found[-1][key] / found[0][key])
          for key in ("temporary_mib", across)
      )
      yield _law(
          f"{part}: temporary memory, power of {across}",
          grown / longer, power,
      )
  steps = [record for record in records if record["part"] == "decode"]
  if steps:
    floor, few, *_, many = (record["seconds_per_step"] for record in steps)
    # Where more cost no more than the least, nothing was seen to grow.
    share = (few - floor) / (many - floor) if many > floor else None
    yield _law("decode: few over many", share, 0.5)


def _law(name: str, found: float | None, limit: float) -> Record:
  return {
      "law": name,
      "found": found and round(found, 3),
      "limit": limit,
      "holds": found is not None and found <= limit,
  }


def write(records: list[Record], folder: pathlib.Path) -> None:
  """Writes growth.txt, what was printed, and growth.png."""
  folder.mkdir(parents=True, exist_ok=True)
  command = " ".join(sys.argv[1:])
  header = (
      f"# .venv/bin/python experiments/benchmarks/growth.py {command}".rstrip(),
      f"# jax {jax.__version__} on {jax.default_backend()}",
  )
  lines = [*header, *map(json.dumps, records)]
  (folder / "growth.txt").write_text("\n".join(lines) + "\n")
  found = [record for record in records if "part" in record]
  growth_picture.draw(found, folder / "growth.png")


def main() -> int:
  """Prints the lines, writes the files; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--only", default=",".join(PARTS))
  parser.add_argument("--quick", action="store_true")
  parser.add_argument("--layers", type=int, default=4)
  parser.add_argument("--vocabulary", type=int, default=8192)
  parser.add_argument("--slots", type=int, default=16)
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--folder", type=pathlib.Path)
  asked = parser.parse_args()
  parts = tuple(asked.only.split(","))
  if set(parts) - set(PARTS):
    parser.error(f"--only: expected some of {', '.join(PARTS)}")
  config = policy_lib.preset("smollm2-135m").replace(
      layers=asked.layers, vocab_size=asked.vocabulary
  )
  policy = policy_lib.Policy(config)
  sizes = (quick if asked.quick else whole)(asked.slots, asked.repeats)
  records = []

  def tell(found):
    for record in found:
      records.append(record)
      print(json.dumps(record), flush=True)

  tell(train_records(policy, sizes, parts))
  if "decode" in parts:
    tell(decode_records(policy, sizes))
  tell(list(laws(records)))
  complete = not asked.quick and parts == PARTS
  folder = asked.folder or (HERE if complete else None)
  if folder is not None:
    write(records, folder)
  return 0 if all(record.get("holds", True) for record in records) else 1


if __name__ == "__main__":
  sys.exit(main())
