"""Measures which share of the computed tokens of packed rows is real.

Command: .venv/bin/python experiments/benchmarks/packing.py
Hardware: one CPU core, seconds.
Expect: one JSON line per workload and shape of a micro-batch: the rows that a
  mini-batch fills, the share of their tokens that is real (`filled`), and that
  of all computed tokens, with the empty rows of the last micro-batch
  (`computed`); means of five draws of lengths.

A mini-batch is groups of responses to prompts, lengths uniform between two
bounds, packed as training packs them: neighbours share their prompt.
"""

import dataclasses
import json

import numpy as np

from jaxrl_llm.data import packing


@dataclasses.dataclass(frozen=True)
class Workload:
  """Lengths of a mini-batch.

  Attributes:
    name: shown.
    groups: prompts.
    samples: responses to each.
    prompts: shortest and longest prompt, tokens.
    responses: shortest and longest response, tokens.
    shapes: (tokens of a row, rows of a micro-batch) to try.
  """

  name: str
  groups: int
  samples: int
  prompts: tuple[int, int]
  responses: tuple[int, int]
  shapes: tuple[tuple[int, int], ...]


WORKLOADS = (
    Workload(
        "answers", 64, 8, (56, 64), (8, 256),
        ((512, 1), (1024, 1), (1024, 4), (2048, 1), (2048, 4)),
    ),
    Workload(
        "reasoning", 32, 16, (150, 250), (100, 4000),
        ((4352, 1), (8192, 1), (8192, 4), (16384, 1)),
    ),
)


def shares(
    work: Workload, tokens: int, rows: int, seed: int
) -> tuple[int, float, float]:
  """Packs one draw: rows that it fills, share of these, share of all."""
  rng = np.random.default_rng(seed)
  ids = np.arange(work.groups).repeat(work.samples)
  prompts = rng.integers(*work.prompts, work.groups, endpoint=True)[ids]
  responses = rng.integers(*work.responses, ids.size, endpoint=True)
  packed = packing.pack(prompts + responses, responses, ids, tokens)
  real = 0
  for members in packed:
    _, first = np.unique(ids[members], return_index=True)
    real += np.sum(prompts[members][first] - 1)
    real += np.sum(responses[members] + 1)
  computed = -(-len(packed) // rows) * rows
  return len(packed), real / (len(packed) * tokens), real / (computed * tokens)


def main() -> None:
  """Prints the lines."""
  for work in WORKLOADS:
    for tokens, rows in work.shapes:
      draws = [shares(work, tokens, rows, seed) for seed in range(5)]
      filled, share, computed = np.mean(draws, axis=0)
      print(json.dumps({
          "workload": work.name,
          "row_tokens": tokens,
          "microbatch_rows": rows,
          "rows": round(float(filled), 1),
          "filled": round(float(share), 4),
          "computed": round(float(computed), 4),
      }))


if __name__ == "__main__":
  main()
