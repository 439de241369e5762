"""Which part of a job this process does: a host of many, or a worker alone."""

import contextlib
import json
import os
import re

import jax
import ml_collections

from jaxrl_llm import hosts
from jaxrl_llm.verbs import record


def start(
    config: ml_collections.ConfigDict,
) -> contextlib.AbstractContextManager:
  """Joins the other hosts; returns a context in which one of them prints.

  Raises:
    ValueError: the keys do not fit, or the hosts were given different ones.
  """
  chosen = config.distributed
  hosts.start(
      chosen.coordinator, chosen.process_count, chosen.process_index
  )
  share(config)
  _require_alike(config)
  if jax.process_index() == 0:
    return contextlib.nullcontext()
  silence = contextlib.ExitStack()
  devnull = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
  silence.enter_context(contextlib.redirect_stdout(devnull))
  return silence


def _require_alike(config: ml_collections.ConfigDict) -> None:
  """Refuses hosts that would compute different things; all call.

  Raises:
    ValueError: in every process, with both values of what differs.
  """
  own = record.select(config, config.keys())
  first, *others = map(json.loads, hosts.exchange(json.dumps(own)))
  for number, other in enumerate(others, 1):
    odd = [
        f"{key} ({first[key]!r}, there {value!r})"
        for key, value in other.items()
        if first[key] != value
    ]
    if odd:
      raise ValueError(
          "distributed: expected one configuration in all processes, found"
          f" another in process {number} than in process 0: {'; '.join(odd)};"
          " start every process with the same command."
      )


def works_alone(config: ml_collections.ConfigDict) -> bool:
  """Whether this is one of several workers that know nothing of each other."""
  return bool(config.distributed.worker)


def share(config: ml_collections.ConfigDict) -> tuple[int, int]:
  """Returns which part of a round this process generates, and of how many.

  Raises:
    ValueError: distributed.worker is no such part.
  """
  text = config.distributed.worker
  if not text:
    return jax.process_index(), jax.process_count()
  # One way to write a number: it names the lock of the worker's folder.
  match = re.fullmatch(r"(0|[1-9][0-9]*)/([1-9][0-9]*)", text)
  if not match or int(match[1]) >= int(match[2]):
    raise ValueError(
        "distributed.worker: expected K/N with K from 0 to N - 1, as 0/4,"
        f" found {text!r}."
    )
  if jax.process_count() > 1:
    raise ValueError(
        f"distributed.worker: {text} works alone, found"
        f" {jax.process_count()} processes that work together; give one or the"
        " other."
    )
  return int(match[1]), int(match[2])


def refuse_workers(config: ml_collections.ConfigDict, verb: str) -> None:
  """Refuses a worker where the work cannot be split.

  Raises:
    ValueError: in one line.
  """
  if works_alone(config):
    raise ValueError(
        f"distributed.worker: workers generate, found the verb {verb}; run"
        " `generate` in each, then `train` in one."
    )
