"""Scores the episodes of shard folders by their influence, trains nothing.

Needs --config.curation.name=ippo. A score is the inner product of an
episode's gradient with the validation gradient, at the latest checkpoint
under --workdir, else the model: positive where training on the episode helps.
Writes scores/scores.jsonl, a line per record, and scores/episodes.txt, the
text of the best and the worst, under --workdir.
"""

from collections.abc import Sequence
import json
import math
import pathlib

import ml_collections

from jaxrl_llm.data import atomic
from jaxrl_llm.models import sharding
from jaxrl_llm.training import score as score_lib
from jaxrl_llm.verbs import critics
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import train

SECTIONS = (
    "seed", "mesh", "model", "allocation", "objective", "critic", "curation",
    "train",
)
# Episodes shown at each end.
SHOWN = 10


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Scores, writes and says where."""
  workdir = flags.require_workdir(workdir, "score")
  with folders.alone(workdir):
    _main(config, workdir)


def _main(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Does what `main` says, as the only writer."""
  step = parts.curation(config)
  if step is None or not step.reads_scores:
    raise ValueError(
        f"curation.name: {config.curation.name} has no scores; set it to ippo."
    )
  chosen = folders.rollouts(config.train.rollouts, workdir)
  record.compare(config, SECTIONS, workdir)
  model = parts.model(config, parts.tokenizer(config))
  record.agree(config, SECTIONS, workdir)
  scored = list(
      score_lib.score(
          model.policy,
          train.start(config, model, workdir),
          parts.spec(config),
          parts.train_settings(config),
          chosen,
          curation=step,
          validation=parts.validation_rollouts(config, model.tokenizer),
          tokenizer_fingerprint=model.tokenizer.fingerprint,
          seed=config.seed,
          mesh=sharding.make_mesh(config.mesh),
          group_limit=parts.allocator(config).group_limit,
          critic=critics.build(config, model.policy),
      )
  )
  folder = write(workdir / "scores", scored)
  positive = sum(one.score > 0 for one in scored)
  print(f"{positive} of {len(scored)} episodes have a positive score")
  print(f"scores: {folder}")


def write(
    folder: pathlib.Path, scored: Sequence[score_lib.Scored]
) -> pathlib.Path:
  """Writes both files, best episodes first; returns the folder."""
  folder.mkdir(parents=True, exist_ok=True)
  finite = [one for one in scored if math.isfinite(one.score)]
  ranked = sorted(finite, key=lambda one: (-one.score, one.rollout.record_id))
  others = [one for one in scored if not math.isfinite(one.score)]
  lines = [json.dumps(_line(one)) + "\n" for one in [*ranked, *others]]
  atomic.write_text(folder / "scores.jsonl", "".join(lines))
  best, worst = ranked[:SHOWN], ranked[SHOWN:][-SHOWN:][::-1]
  text = ""
  for title, chosen in (("Best", best), ("Worst", worst)):
    text += f"=== {title} {len(chosen)} of {len(scored)}\n\n"
    text += "".join(map(_episode, chosen))
  atomic.write_text(folder / "episodes.txt", text)
  return folder


def _line(one: score_lib.Scored) -> dict[str, float | int | str | None]:
  rollout = one.rollout
  return {
      "record_id": rollout.record_id,
      "group_id": rollout.group_id,
      "prompt_id": rollout.prompt_id,
      "reward": rollout.reward,
      "response_tokens": int(rollout.response_tokens.size),
      "score": one.score if math.isfinite(one.score) else None,
      "weight": one.weight,
  }


def _episode(one: score_lib.Scored) -> str:
  rollout = one.rollout
  return (
      f"--- record {rollout.record_id}: score {one.score:.6g}, weight"
      f" {one.weight:.3g}, reward {rollout.reward:g}, answer"
      f" {rollout.reference_answer}\n{rollout.prompt_text}\n>>>"
      f" {rollout.response_text}\n\n"
  )
