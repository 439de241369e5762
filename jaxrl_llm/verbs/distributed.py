"""Which part of a job this process does: a host of many, or a worker alone."""

import contextlib
import os
import re

import jax
import ml_collections

from jaxrl_llm import hosts


def start(
    config: ml_collections.ConfigDict,
) -> contextlib.AbstractContextManager:
  """Joins the other hosts; returns a context in which one of them prints.

  Raises:
    ValueError: the keys do not fit.
  """
  chosen = config.distributed
  hosts.start(
      chosen.coordinator, chosen.process_count, chosen.process_index
  )
  share(config)
  if jax.process_index() == 0:
    return contextlib.nullcontext()
  silence = contextlib.ExitStack()
  devnull = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
  silence.enter_context(contextlib.redirect_stdout(devnull))
  return silence


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
  match = re.fullmatch(r"(\d+)/(\d+)", text)
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
