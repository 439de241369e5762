"""Trains on the same shards under several objectives, and compares them.

From one start, every objective takes the same mini-batches in the same order
with the same noise. Prints, and writes to replay.txt and replay.json under
--workdir, before the first update and after --config.lab.updates of them:
loss, gradient norm, tokens cut by side, effective sample size, drift from the
behavior policy, and the cosines between the objectives' gradients; against the
exact policy gradient too, where all responses can be listed. Nothing is
sampled. Killed and started again, it goes on with the objective at which it
was.
"""

from collections.abc import Sequence
import pathlib
import shutil

import ml_collections
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import atomic
from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.data import shards
from jaxrl_llm.lab import bench as bench_lib
from jaxrl_llm.lab import exact as exact_lib
from jaxrl_llm.lab import objectives
from jaxrl_llm.lab import replay as replay_lib
from jaxrl_llm.lab import tables
from jaxrl_llm.losses import objective
from jaxrl_llm.models import sharding
from jaxrl_llm.rollout import records
from jaxrl_llm.training import bandit
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import scoring
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record

SECTIONS = (
    "seed", "mesh", "model", "prompts", "reward", "train", "lab.objectives",
    "lab.correction", "lab.shards", "lab.checkpoint", "lab.updates",
    "lab.exact_limit",
)
SHORT_FLAGS = {"shards": "lab.shards", "objectives": "lab.objectives"}
RESULT, TEXT, CELLS = "replay.json", "replay.txt", "replay"


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Replays what is missing, and shows the tables."""
  workdir = flags.require_workdir(workdir, "replay")
  with folders.alone(workdir):
    _main(config, workdir)


def _main(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Does what `main` says, as the only writer."""
  record.compare(config, SECTIONS, workdir)
  entries = objectives.parse(config.lab.objectives, config.lab.correction)
  if not (workdir / RESULT).is_file():
    _replay(config, workdir, entries)
  # Vectors as large as the model; a kill may have left them.
  shutil.rmtree(workdir / CELLS, ignore_errors=True)
  found = atomic.read_json(
      workdir / RESULT,
      ("updates", "objectives", "rows", "cosines", "not_replayed"),
      "delete it, and the same command makes it anew",
  )
  text = tables.of_replay(found)
  atomic.write_text(workdir / TEXT, text)
  print(text, end="")
  print(f"numbers: {workdir / RESULT}")


def _replay(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    entries: Sequence[objectives.Entry],
) -> None:
  """Writes RESULT."""
  if config.train.clip_bandit != bandit.NONE:
    raise ValueError(
        "train.clip_bandit: a bandit chooses bounds from round to round, and a"
        f" replay has one, found {config.train.clip_bandit}; set it to none."
    )
  if config.lab.exact_limit < 0:
    raise ValueError(
        "lab.exact_limit: expected 0 (never) or more, found"
        f" {config.lab.exact_limit}; correct it."
    )
  model = parts.model(config, parts.tokenizer(config))
  bench = make_bench(config, model)
  chosen, refused = _chosen(config, bench, entries)
  work = bench_lib.open_round(bench, chosen[0])
  bench_lib.places(bench, work)
  record.agree(config, SECTIONS, workdir)
  exact = enumeration(config, model, bench)
  rows, places = {}, []
  for entry in chosen:
    reference = None
    if objective.requirements(entry.spec).reference:
      reference = parts.reference(config, model)
    print(f"replaying {entry.label}", flush=True)
    places.append(workdir / CELLS / entry.folder)
    rows[entry.label] = replay_lib.run(
        bench, entry, reference, places[-1], exact
    )
  found = {
      "updates": bench.updates,
      "objectives": [entry.label for entry in chosen],
      "rows": rows,
      "described": {
          entry.label: objective.describe(entry.spec) for entry in chosen
      },
      "cosines": replay_lib.matrices(places),
      "not_replayed": refused,
      "records": len(work.selection.positions),
      "dropped": dict(work.selection.drops),
      "shards": list(map(str, bench.folders)),
  }
  atomic.write_json(workdir / RESULT, found)


def make_bench(
    config: ml_collections.ConfigDict, model: parts.Model
) -> bench_lib.Bench:
  """Makes what all objectives share.

  Raises:
    ValueError: no shards are named.
    FileNotFoundError: there are none where they should be.
  """
  if not config.lab.shards:
    raise ValueError(
        "lab.shards: expected shard folders, found none; give --shards=DIR."
    )
  params = model.start_params
  lineage = parts.lineage(config, params)
  if config.lab.checkpoint:
    path = pathlib.Path(config.lab.checkpoint)
    if path not in checkpoints.complete_steps(path.parent).values():
      raise FileNotFoundError(
          f"lab.checkpoint: expected a checkpoint folder step_N, found {path};"
          " correct it."
      )
    like = parts.start_like(config, model)
    params = checkpoints.restore_params(path, like)
  return bench_lib.Bench(
      policy=model.policy,
      params=params,
      settings=parts.train_settings(config),
      folders=folders.rollouts(config.lab.shards, None),
      tokenizer_fingerprint=model.tokenizer.fingerprint,
      lineage=lineage,
      seed=config.seed,
      mesh=sharding.make_mesh(config.mesh),
      updates=config.lab.updates,
  )


def _chosen(
    config: ml_collections.ConfigDict,
    bench: bench_lib.Bench,
    entries: Sequence[objectives.Entry],
) -> tuple[list[objectives.Entry], dict[str, str]]:
  """Returns what can be replayed, and why the others cannot.

  Raises:
    ValueError: one that was named cannot, or none can.
  """
  problems = {entry.label: bench_lib.check(bench, entry) for entry in entries}
  refused = objectives.refused(config.lab.objectives, problems)
  return [entry for entry in entries if entry.label not in refused], refused


def enumeration(
    config: ml_collections.ConfigDict,
    model: parts.Model,
    bench: bench_lib.Bench,
) -> exact_lib.Enumeration | None:
  """Makes what gives exact gradients; None where that is out of reach."""
  if not config.lab.exact_limit or config.reward.verifier == "reasoning_gym":
    return None  # The latter reads more of a problem than a record holds.
  limits = {
      shards.read_metadata(path).sampling.get("max_new_tokens")
      for path in bench.folders
  }
  if len(limits) > 1 or None in limits:
    return None
  made = exact_lib.Enumeration(
      policy=model.policy,
      stop_ids=tuple(model.tokenizer.stop_ids),
      length=limits.pop(),
      grade=_grade(config, model.tokenizer),
      shape=scoring.Shape(
          bench.settings.rows_per_microbatch, bench.settings.tokens_per_row
      ),
      rows=sharding.rows(bench.mesh),
      limit=config.lab.exact_limit,
  )
  return made if made.affordable(1) else None


def _grade(
    config: ml_collections.ConfigDict, tokenizer: parts.Tokenizer
) -> exact_lib.Grade:
  """Rewards of responses to the prompts of records, as the run gave them."""
  grader = parts.grader(config)

  def grade(
      responses: Sequence[tuple[types.Rollout, np.ndarray]],
  ) -> list[float]:
    posed = [
        (
            records.text_of(tokenizer, tokens),
            prompts_lib.Prompt(
                rollout.prompt_id,
                rollout.prompt_tokens,
                rollout.prompt_text,
                rollout.reference_answer,
                {},
            ),
        )
        for rollout, tokens in responses
    ]
    return [reward.total for reward in grader.grade(posed)]

  return grade
