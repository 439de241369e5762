"""Trains one start on the same mini-batches under several objectives.

What is measured of a mini-batch is what training would write of it: the same
preparation, denominators, noise and update (training/). An objective is
replayed by itself, and what it left lies in a folder of its own, so a replay
that was killed goes on with the objective at which it was.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import math
import pathlib
from typing import Any

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import atomic
from jaxrl_llm.lab import bench as bench_lib
from jaxrl_llm.lab import exact as exact_lib
from jaxrl_llm.lab import gradients
from jaxrl_llm.lab import objectives
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import curves
from jaxrl_llm.training import minibatch as minibatch_lib
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import prepare
from jaxrl_llm.training import rounds
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import step
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib

# When a mini-batch is measured, and what its vectors' files are called.
STAGES = ("start", "after")
MOVED = "moved"
ROWS = "rows.json"


def run(
    bench: bench_lib.Bench,
    entry: objectives.Entry,
    reference: types.PyTree,
    folder: pathlib.Path,
    exact: exact_lib.Enumeration | None,
) -> Mapping[str, Any]:
  """Replays one objective, or reads what it left.

  Args:
    bench: what all objectives share.
    entry: the objective.
    reference: parameters of the reference policy, if it has one.
    folder: receives its rows and vectors.
    exact: gives the exact policy gradient, or None.

  Returns:
    A row of numbers by stage.
  """
  if (folder / ROWS).is_file():
    return atomic.read_json(
        folder / ROWS, STAGES, "delete it, and the objective is replayed anew"
    )
  folder.mkdir(parents=True, exist_ok=True)
  trainer = bench_lib.build(bench, entry, reference)
  work = bench_lib.open_round(bench, entry)
  optimizer = optimizer_lib.build(bench.settings)
  state = state_lib.place(
      state_lib.create(bench.params, optimizer, bench.lineage),
      bench.policy,
      optimizer,
      bench.mesh,
  )
  with jax.set_mesh(bench.mesh):
    path = bench_lib.places(bench, work)
    rows, state = _walk(trainer, state, work, path, folder, exact)
    moved = jax.tree.map(
        lambda new, old: new - old,
        policy_lib.trained(state.params),
        policy_lib.trained(bench.params),
    )
  vector = gradients.flatten(moved)
  gradients.save(folder / f"{MOVED}.npy", vector)
  rows["after"] |= {
      "moved": gradients.norm(vector),
      "updates": state.updates,
      "skipped": int(state.counters.bad_updates),
  }
  rows["start"] |= {"moved": 0.0, "updates": 0, "skipped": 0}
  rows = json.loads(json.dumps(rows), parse_constant=lambda _: None)
  atomic.write_json(folder / ROWS, rows)
  return rows


def _walk(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    path: Sequence[bench_lib.Place],
    folder: pathlib.Path,
    exact: exact_lib.Enumeration | None,
) -> tuple[dict[str, dict[str, Any]], state_lib.TrainState]:
  """Measures the first mini-batch, trains up to the last and measures it."""
  rows: dict[str, dict[str, Any]] = {}
  stopped = False
  for number, place in enumerate(path):
    if place.position.begins_batch:
      stopped = False
      state = _at(state, place.position)
      prepared = prepare.obtain(trainer, state, work, folder)
    rollouts = [work.records[int(n)] for n in place.records]
    minibatch = _minibatch(trainer, rollouts, prepared)
    totals = _totals(trainer, state, minibatch)
    stage = {0: "start", len(path) - 1: "after"}.get(number)
    if stage:
      vector = _vector(state, totals)
      rows[stage] = _row(minibatch, totals, vector)
      rows[stage] |= _against(exact, state.params, rollouts, vector)
      if totals is not None:
        gradients.save(folder / f"{stage}.npy", vector)
    stopped = stopped or _stops(trainer, totals)
    if stage != "after" and totals is not None and not stopped:
      state = _update(trainer, state, totals)
  return rows, state


def _at(
    state: state_lib.TrainState, position: state_lib.Position
) -> state_lib.TrainState:
  """Moves a state to the beginning of a rollout batch."""
  position = dataclasses.replace(position, batch_updates=state.updates)
  return dataclasses.replace(state, position=position)


def _minibatch(
    trainer: trainer_lib.Trainer,
    rollouts: Sequence[types.Rollout],
    prepared: stored.Prepared,
) -> minibatch_lib.Minibatch:
  """Packs and splits a mini-batch."""
  terms = prepared.of([rollout.record_id for rollout in rollouts])
  terms = {k: v for k, v in terms.items() if k in trainer.terms}
  return minibatch_lib.build(trainer, rollouts, terms)


def _totals(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    minibatch: minibatch_lib.Minibatch,
) -> step.Totals | None:
  """Loss, gradient and metrics; None where there is nothing to learn from."""
  if not minibatch.pieces:
    return None
  return minibatch_lib.accumulate(
      trainer, state.params, minibatch, state.steps, state.counters.updates
  )


def _stops(trainer: trainer_lib.Trainer, totals: step.Totals | None) -> bool:
  """Whether the objective ends the epochs on the rollout batch here."""
  if trainer.needs.stop_deviation is None or totals is None:
    return False
  finished = types.finish_metrics(jax.device_get(totals.metrics))
  return objective.should_stop(trainer.spec, finished)


def _update(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    totals: step.Totals,
) -> state_lib.TrainState:
  """Applies the optimizer once."""
  params, opt_state, counters, _ = trainer.steps.update(
      state.params, state.opt_state, state.counters, totals
  )
  return dataclasses.replace(
      state, params=params, opt_state=opt_state, counters=counters
  )


def _vector(
    state: state_lib.TrainState, totals: step.Totals | None
) -> np.ndarray:
  """The gradient as a vector; zeros where there is none."""
  if totals is not None:
    return gradients.flatten(totals.grads)
  return 0.0 * gradients.flatten(policy_lib.trained(state.params))


def _row(
    minibatch: minibatch_lib.Minibatch,
    totals: step.Totals | None,
    vector: np.ndarray,
) -> dict[str, Any]:
  """What is known of a mini-batch before its update."""
  row: dict[str, Any] = dict(minibatch.known)
  if totals is None:
    return row
  sums = jax.device_get(totals.metrics)
  row |= types.finish_metrics(sums)
  return row | {
      "positions": curves.finish(sums["positions"]),
      "loss": float(totals.loss),
      "grad_norm": gradients.norm(vector),
  }


def _against(
    exact: Callable[..., Any] | None,
    params: types.PyTree,
    rollouts: Sequence[types.Rollout],
    vector: np.ndarray,
) -> dict[str, float]:
  """Compares with the exact gradient of what training should lower, −J."""
  found = exact(params, rollouts) if exact is not None else None
  if found is None:
    return {}
  reward, grads = found
  wanted = -gradients.flatten(grads)
  norms = gradients.norm(wanted) * gradients.norm(vector)
  inner = float(vector.astype("float64") @ wanted.astype("float64"))
  return {
      "exact/reward": reward,
      "exact/grad_norm": gradients.norm(wanted),
      "exact/cosine": inner / norms if norms else math.nan,
  }


def matrices(
    folders: Sequence[pathlib.Path],
) -> dict[str, list[list[float | None]]]:
  """Cosines between the objectives' vectors of each stage, and of the moves.

  Args:
    folders: of `run`, N.

  Returns:
    [N, N] by name; None where an objective has no gradient.
  """
  found = {}
  for name in (*STAGES, MOVED):
    paths = [folder / f"{name}.npy" for folder in folders]
    values = gradients.cosines(
        [path if path.is_file() else None for path in paths]
    )
    found[name] = [
        [None if math.isnan(x) else float(x) for x in row] for row in values
    ]
  return found

