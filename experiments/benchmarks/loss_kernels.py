"""Measures the kernels of the losses, in both of their forms.

Command: .venv/bin/python experiments/benchmarks/loss_kernels.py
  [--rows=64] [--tokens=8192] [--repeats=30] [--calls=1]
Hardware: 2 CPU cores, 2 GiB of memory, about 2 minutes; or one accelerator,
  with --calls=20.
Expect: one JSON line per kernel and form with the medians of its forward pass
  and of its forward and backward pass, in microseconds, and each as a multiple
  of what a plain jnp.exp of the same array takes; then the same as a table.
  `runs` marks the form that kernels.FORMS gives this backend. Exit code 1
  where such a form takes over 1.25 times as long as the other one, at what
  the losses do with the kernel: forward and backward for the two that they
  differentiate (cumulative_log_ratios and last_values), forward for the rest.

All programs take turns, so that what else the machine does falls on all of
them. --calls dispatches each so many times before it waits, which hides the
time of a dispatch. Rows are float32, hold responses of 512 tokens on average,
and a tenth of their tokens is masked. The running count of response tokens in
token_advantages.py is jnp.cumsum of a bool array, which has no gradient.
"""

import argparse
from collections.abc import Callable, Iterator
import dataclasses
import json
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.losses import kernels

SLOWER = 1.25
MEAN_LENGTH = 512
MASKED_SHARE = 0.1
DIFFERENTIATED = ("cumulative_log_ratios", "last_values")


@dataclasses.dataclass(frozen=True)
class Case:
  """One kernel in one form, over [B, T].

  Attributes:
    kernel: its name.
    form: scan or parallel; empty where there is one form only.
    function: of `arguments`.
    arguments: the gradient is taken in the first.
    differentiable: whether there is one.
  """

  kernel: str
  form: str
  function: Callable[..., Any]
  arguments: tuple[jax.Array, ...]
  differentiable: bool = True

  @property
  def runs(self) -> bool:
    """Whether training runs this form here."""
    if not self.form:
      return True
    return kernels.form("scan", "parallel") == self.form

  def forward(self) -> Callable[..., Any]:
    return jax.jit(self.function)

  def forward_backward(self) -> Callable[..., Any]:
    """The outputs, and what their own values pull back to."""

    def run(first, *others):
      outputs, pull = jax.vjp(lambda x: self.function(x, *others), first)
      return outputs, pull(outputs)

    return jax.jit(run)


def cases(rows: int, tokens: int) -> Iterator[Case]:
  """Yields every kernel and form on random rows, and jnp.exp."""
  draw = np.random.default_rng(0)
  shape = (rows, tokens)
  starts = draw.random(shape) < 1 / MEAN_LENGTH
  starts[:, 0] = True
  starts = jnp.asarray(starts)
  mask = jnp.asarray(draw.random(shape) >= MASKED_SHARE)
  signed = jnp.asarray(0.01 * draw.normal(size=shape), jnp.float32)
  positive = jnp.abs(signed)
  scalar = jnp.float32(0.99)
  for name, arguments in {
      "cumulative_log_ratios": (signed, mask, starts),
      "last_values": (signed, starts),
      "prefix_budgets": (positive, positive, mask, starts, scalar),
      "discounted_returns": (signed, mask, starts, scalar),
      "next_values": (signed, positive, mask, starts),
  }.items():
    axes = tuple(0 if x.ndim else None for x in arguments)
    for form, suffix in (("scan", ""), ("parallel", "_parallel")):
      kernel = getattr(kernels, name + suffix)
      yield Case(name, form, jax.vmap(kernel, in_axes=axes), arguments)
  count = lambda mask: jnp.cumsum(mask, axis=1)
  yield Case("cumsum", "", count, (mask,), differentiable=False)
  yield Case("exp", "", jnp.exp, (signed,))


def medians(
    programs: dict[Any, tuple[Callable[..., Any], tuple[jax.Array, ...]]],
    repeats: int,
    calls: int,
) -> dict[Any, float]:
  """Median microseconds of a call of each program; they take turns."""
  timed = {key: [] for key in programs}
  for turn in range(repeats + 1):
    for key, (run, arguments) in programs.items():
      began = time.perf_counter()
      for _ in range(calls):
        outputs = run(*arguments)
      jax.block_until_ready(outputs)
      if turn:  # The first compiles.
        timed[key].append(time.perf_counter() - began)
  return {
      key: 1e6 * statistics.median(seconds) / calls
      for key, seconds in timed.items()
  }


def measure(
    rows: int, tokens: int, repeats: int, calls: int
) -> list[dict[str, Any]]:
  """Returns one record per kernel and form; jnp.exp comes last."""
  found = list(cases(rows, tokens))
  programs = {}
  for index, case in enumerate(found):
    programs[index, "forward"] = (case.forward(), case.arguments)
    if case.differentiable:
      programs[index, "both"] = (case.forward_backward(), case.arguments)
  times = medians(programs, repeats, calls)
  last = len(found) - 1

  def record(index, case):
    entries = {
        "backend": jax.default_backend(),
        "kernel": case.kernel,
        "form": case.form,
        "runs": case.runs,
    }
    for part, name in (("forward", "forward"), ("both", "forward_backward")):
      micros = times.get((index, part))
      entries |= {
          f"{name}_us": micros and round(micros, 1),
          f"{name}_of_exp": micros and round(micros / times[last, part], 1),
      }
    return entries

  return [record(index, case) for index, case in enumerate(found)]


def table(records: list[dict[str, Any]]) -> str:
  """Lays records out as lines of a table."""
  columns = list(records[0])
  lines = [columns] + [
      ["–" if record[name] in (None, "") else str(record[name])
       for name in columns]
      for record in records
  ]
  widths = [max(map(len, column)) for column in zip(*lines)]
  return "\n".join(
      "| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines
  )


def slower(records: list[dict[str, Any]]) -> list[str]:
  """Names the kernels whose running form is clearly the slower one."""
  times = {}
  for record in filter(lambda record: record["form"], records):
    name = record["kernel"]
    part = "forward_backward" if name in DIFFERENTIATED else "forward"
    times[name, record["runs"]] = record[f"{part}_us"]
  return [
      name
      for name, runs in times
      if runs and times[name, True] > SLOWER * times[name, False]
  ]


def main() -> int:
  """Prints lines and table; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--rows", type=int, default=64)
  parser.add_argument("--tokens", type=int, default=8192)
  parser.add_argument("--repeats", type=int, default=30)
  parser.add_argument("--calls", type=int, default=1)
  asked = parser.parse_args()
  records = measure(asked.rows, asked.tokens, asked.repeats, asked.calls)
  for record in records:
    print(json.dumps(record), flush=True)
  print(table(records), flush=True)
  names = slower(records)
  if names:
    print(f"the other form is faster for {', '.join(names)}", flush=True)
  return 1 if names else 0


if __name__ == "__main__":
  sys.exit(main())
