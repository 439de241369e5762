"""Trains objectives on shards of older and older policies, and compares them.

For each of --config.lab.seeds, a run of as many rounds as the largest lag
leaves shards of every policy version, v0 to vK, and the policy vK, from which
every objective starts: at lag L it trains on the shards that v(K − L) wrote,
then it is evaluated. Writes under --workdir staleness.json, staleness.txt and
staleness.png: held-out reward, spread of the ratio and divergence from the
behavior policy over the lag, with the spread between seeds. With one seed it
draws the curves and prints no ranking. Killed and started again, it keeps the
versions and the cells (objective, lag, seed) that are finished.
"""

from collections.abc import Mapping, Sequence
import pathlib
import shutil
from typing import Any

import ml_collections
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import atomic
from jaxrl_llm.data import shards
from jaxrl_llm.lab import curves
from jaxrl_llm.lab import objectives
from jaxrl_llm.lab import staleness as staleness_lib
from jaxrl_llm.losses import objective
from jaxrl_llm.models import sharding
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import loop
from jaxrl_llm.training import metrics
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.verbs import evaluate
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import run
from jaxrl_llm.verbs import versions

SECTIONS = (
    "mesh", "model", "prompts", "sampling", "generation", "allocation",
    "reward", "objective", "critic", "curation", "train", "evaluation",
    "lab.objectives", "lab.correction", "lab.versions", "lab.lags",
    "lab.seeds",
)
RESULT, TEXT, PICTURE = "staleness.json", "staleness.txt", "staleness.png"
CELL = "cell.json"


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Fills the cells that are missing, and shows tables and curves."""
  workdir = flags.require_workdir(workdir, "staleness")
  with folders.alone(workdir):
    _main(config, workdir)


def _main(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Does what `main` says, as the only writer."""
  record.compare(config, SECTIONS, workdir)
  lags, seeds = tuple(config.lab.lags), tuple(config.lab.seeds)
  staleness_lib.check(lags, seeds)
  entries = objectives.parse(config.lab.objectives, config.lab.correction)
  refused = _refused(config, entries)
  run.check_training(config)
  given = versions.named(config)
  if not given and not max(lags):
    raise ValueError(
        f"lab.lags: expected a lag above 0, found {lags}: the runs behind the"
        " lags have as many rounds as the largest, and without one there is no"
        " policy to start from; add a lag, or name runs in lab.versions."
    )
  if not (workdir / RESULT).is_file():
    made = {}
    for number, seed in enumerate(seeds):
      own = config.copy_and_resolve_references()
      own.seed = seed
      job = parts.job(own)
      record.agree(config, SECTIONS, workdir)
      place = given[number] if given else workdir / "versions" / f"seed_{seed}"
      made[seed] = versions.make(job, place, None if given else max(lags))
    left = [entry for entry in entries if entry.label not in refused]
    _study(left, lags, made, refused, workdir)
  found = atomic.read_json(
      workdir / RESULT,
      ("lags", "seeds", "before", "version_lags", "cells", "summary"),
      "delete it, and the same command makes it anew from the cells",
  )
  shown = curves.text(found)
  atomic.write_text(workdir / TEXT, shown)
  print(shown, end="")
  print(f"picture: {curves.draw(found, workdir / PICTURE)}")
  print(f"numbers: {workdir / RESULT}")


def _refused(
    config: ml_collections.ConfigDict, entries: Sequence[objectives.Entry]
) -> dict[str, str]:
  """Says why objectives cannot be trained on what the versions write.

  Raises:
    ValueError: one that was named cannot, or none can.
  """
  problems = {entry.label: _problem(config, entry) for entry in entries}
  return objectives.refused(config.lab.objectives, problems)


def _problem(
    config: ml_collections.ConfigDict, entry: objectives.Entry
) -> str:
  """Says what an objective lacks; empty where it lacks nothing."""
  if entry.problem:
    return entry.problem
  needs = objective.requirements(entry.spec)
  writer = objective.requirements(parts.spec(config))
  if needs.critic:
    return "it takes its advantages from a critic, and cells train none."
  if needs.greedy_baseline and not writer.greedy_baseline:
    return (
        "it subtracts the reward of a greedy response, which the objective"
        f" that writes the shards, {config.objective.name}, does not draw; set"
        " objective.name=remax."
    )
  if config.sampling.record_topk < needs.behavior_topk:
    return (
        f"it reads the behavior policy's top {needs.behavior_topk}, found"
        f" sampling.record_topk={config.sampling.record_topk}; raise it."
    )
  return ""


def _study(
    entries: Sequence[objectives.Entry],
    lags: Sequence[int],
    made: Mapping[int, versions.Versions],
    refused: Mapping[str, str],
    workdir: pathlib.Path,
) -> None:
  """Fills the cells and writes RESULT."""
  for one in made.values():
    for lag in lags:
      one.folders(lag)  # Refuses a lag before anything is trained.
  before = {}
  for seed, one in made.items():
    state = one.state()
    place = workdir / "start" / f"seed_{seed}"
    before[seed] = _reward(one.job, state.params, state.updates, place)
  cells = []
  for entry in entries:  # An objective compiles once for all of its cells.
    for lag in lags:
      for seed, one in made.items():
        cell = _cell(entry, lag, one, _folder(workdir, entry, lag, seed))
        cells.append(cell | {"gain": cell["reward"] - before[seed]})
  atomic.write_json(
      workdir / RESULT,
      {
          "lags": list(lags),
          "seeds": list(made),
          "before": before,
          "version_lags": _version_lags(cells, lags),
          "described": {
              entry.label: objective.describe(entry.spec) for entry in entries
          },
          "cells": cells,
          "summary": staleness_lib.summary(cells),
          "not_compared": dict(refused),
      },
  )


def _folder(
    workdir: pathlib.Path, entry: objectives.Entry, lag: int, seed: int
) -> pathlib.Path:
  """Returns the working directory of a cell."""
  return workdir / "cells" / entry.folder / f"lag_{lag}" / f"seed_{seed}"


def _cell(
    entry: objectives.Entry,
    lag: int,
    made: versions.Versions,
    folder: pathlib.Path,
) -> dict[str, Any]:
  """Trains one cell and evaluates it, or reads what it found."""
  if (folder / CELL).is_file():
    return atomic.read_json(
        folder / CELL,
        ("label", "lag", "seed", "version_lag", "reward"),
        "delete it, and the cell is trained anew",
    )
  folder.mkdir(parents=True, exist_ok=True)
  members = made.folders(lag)
  start = made.state()
  written = shards.read_metadata(members[0]).policy_version
  with versions.quiet(folder / "log.txt"):
    state = _train(entry, made, start, members, folder)
  cell = {
      "label": entry.label,
      "lag": lag,
      "seed": made.job.config.seed,
      "version_lag": int(start.position.round_updates) - written,
      "reward": _reward(made.job, state.params, state.updates, folder),
  } | staleness_lib.numbers(metrics.read(folder / "metrics.jsonl"))
  atomic.write_json(folder / CELL, cell)
  for name in ("checkpoints", "prepared"):  # Larger than all the rest.
    shutil.rmtree(folder / name, ignore_errors=True)
  print(
      f"{entry.label}, lag {lag}, seed {cell['seed']}: held-out reward"
      f" {cell['reward']:.4f}",
      flush=True,
  )
  return cell


def _train(
    entry: objectives.Entry,
    made: versions.Versions,
    state: state_lib.TrainState,
    members: Sequence[pathlib.Path],
    folder: pathlib.Path,
) -> state_lib.TrainState:
  """Trains on one round's shards, from where the cell's checkpoint stands."""
  config, model = made.job.config, made.job.model
  settings = parts.train_settings(config)
  latest = checkpoints.latest(folders.checkpoints(folder))
  number = state.position.round
  if latest is not None:
    state = made.state(latest)
  reference = None
  if objective.requirements(entry.spec).reference:
    reference = parts.reference(config, model)
  return loop.train(
      model.policy,
      state,
      entry.spec,
      settings,
      members,
      folder,
      tokenizer_fingerprint=model.tokenizer.fingerprint,
      seed=config.seed,
      round=number,
      reference_params=reference,
      mesh=sharding.make_mesh(config.mesh),
      config=record.select(config, config.keys()),
  )


def _reward(
    job: parts.Job,
    params: types.PyTree,
    updates: int,
    folder: pathlib.Path,
) -> float:
  """Mean score of the responses to the held-out problems."""
  folder.mkdir(parents=True, exist_ok=True)
  with versions.quiet(folder / "log.txt"):
    found, _ = evaluate.of(job, params, updates, folder)
  scores = [score for problem in found.problems for score in problem.scores]
  return float(np.nanmean(scores))


def _version_lags(
    cells: Sequence[Mapping[str, Any]], lags: Sequence[int]
) -> list[str]:
  """Updates behind each lag, lowest to highest of the seeds."""
  found = []
  for lag in lags:
    updates = {c["version_lag"] for c in cells if c["lag"] == lag}
    ends = sorted({min(updates), max(updates)})
    found.append("–".join(map(str, ends)))
  return found
