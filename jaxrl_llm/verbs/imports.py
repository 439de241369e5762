"""What an import says of the policy that drew the rollouts."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import ml_collections
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import drafts as drafts_lib
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import layouts
from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.data import schema
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.rollout import records
from jaxrl_llm.rollout import rewards
from jaxrl_llm.training import recompute
from jaxrl_llm.training import scoring
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record

# Of weights that nothing is known of; equal to no fingerprint, so training
# takes the rollouts for stale ones.
UNKNOWN = "unknown"


@dataclasses.dataclass
class Folder:
  """A folder to write: what holds for all of its records, and they.

  Attributes:
    metadata: as the folder will have it.
    places: "file:line" of each record.
    rollouts: the records.
  """

  metadata: schema.FolderMetadata
  places: list[str]
  rollouts: list[types.Rollout]


def foreign(
    config: ml_collections.ConfigDict,
    chosen: layouts.ImportSettings,
    files: Sequence[pathlib.Path],
    tokenizer: tokenizer_lib.Tokenizer,
    drafts: Sequence[drafts_lib.Draft],
) -> Folder:
  """Numbers the responses of another system and describes their folder.

  The lineage is a hash of the files' content and of how it is read, so the
  same import gives the same bytes wherever the files lie.

  Args:
    config: the whole configuration.
    chosen: how the dump is read.
    files: of the dump.
    tokenizer: of the model.
    drafts: its checked responses, at least one.

  Raises:
    ValueError: a group with two prompts.
  """
  read = ("import_rollouts", "reward") if chosen.grade else ("import_rollouts",)
  described = record.select(config, read)
  del described["import_rollouts.files"]
  described["files"] = [
      [path.name, fingerprints.of_file(path)] for path in files
  ]
  parts_of = (tokenizer.fingerprint, *map(repr, sorted(described.items())))
  lineage = f"{fingerprints.of_parts('import', *parts_of):016x}"
  rollouts = drafts_lib.number(drafts, lineage, chosen.round)
  prompts = {
      rollout.group_id: prompts_lib.Prompt(
          rollout.prompt_id,
          rollout.prompt_tokens,
          rollout.prompt_text,
          rollout.reference_answer,
          {},
      )
      for rollout in rollouts
  }
  metadata = schema.FolderMetadata(
      lineage=lineage,
      round=chosen.round,
      policy_version=max(draft.policy_version for draft in drafts),
      weights_fingerprint=UNKNOWN,
      tokenizer_fingerprint=tokenizer.fingerprint,
      prompts_fingerprint=prompts_lib.fingerprint(list(prompts.values())),
      sampling=_sampling(chosen, drafts),
      config=described,
      code_version=records.code_version(),
  )
  places = [draft.place for draft in drafts]
  return Folder(metadata, places, rollouts)


def grader(
    config: ml_collections.ConfigDict, chosen: layouts.ImportSettings
) -> rewards.Grader | None:
  """Makes the grader of import_rollouts.grade; None where it is not set.

  Raises:
    ValueError: the verifier needs more of a problem than a dump holds.
  """
  if not chosen.grade:
    return None
  if config.reward.verifier == "reasoning_gym":
    raise ValueError(
        "reward.verifier: 'reasoning_gym' reads more of a problem than its"
        " answer, which a dump has not; use 'math' or 'last_number'."
    )
  return parts.grader(config)


def graded(verifier: rewards.Grader, folder: Folder) -> Folder:
  """Gives the records of a folder the verifier's rewards."""
  posed = [
      prompts_lib.Prompt(
          rollout.prompt_id,
          rollout.prompt_tokens,
          rollout.prompt_text,
          rollout.reference_answer,
          {},
      )
      for rollout in folder.rollouts
  ]
  texts = [rollout.response_text for rollout in folder.rollouts]
  verdicts = verifier.grade(list(zip(texts, posed, strict=True)))
  names = tuple(sorted((*verifier.part_names, records.PARSED)))
  return Folder(
      dataclasses.replace(folder.metadata, reward_parts=names),
      folder.places,
      list(map(records.graded, folder.rollouts, verdicts)),
  )


def with_model(
    config: ml_collections.ConfigDict,
    chosen: layouts.ImportSettings,
    model: parts.Model,
    folder: Folder,
) -> Folder:
  """Compares or replaces the log-probs with those of the configured model.

  Recomputed ones are the model's, not those of the policy that sampled: its
  weights stay unknown. Compared ones name the model's weights.

  Args:
    config: the whole configuration.
    chosen: says which of the two.
    model: the configured one.
    folder: of `foreign`.

  Raises:
    ValueError: the model did not draw these rollouts, or cannot read them.
  """
  own = recompute.logprobs(
      model.policy,
      model.start_params,
      folder.rollouts,
      scoring.Shape(
          config.train.rows_per_microbatch, config.train.tokens_per_row
      ),
      sharding.make_mesh(config.mesh),
  )
  weights = policy_lib.fingerprint(model.start_params)
  said = f"recomputed as proximal, under the weights {weights}"
  changes: dict[str, Any] = {}
  rollouts = folder.rollouts
  if chosen.recompute_logprobs:
    rollouts = [
        dataclasses.replace(rollout, behavior_logprobs=values)
        for rollout, values in zip(rollouts, own)
    ]
  else:
    distance = recompute.compare(rollouts, own)
    changes["weights_fingerprint"] = weights
    said = f"as recorded, {distance:.4f} nats from the model's on average"
  sampling = {**folder.metadata.sampling, "logprobs": said}
  metadata = dataclasses.replace(
      folder.metadata, sampling=sampling, **changes
  )
  return Folder(metadata, folder.places, rollouts)


def _sampling(
    chosen: layouts.ImportSettings, drafts: Sequence[drafts_lib.Draft]
) -> Mapping[str, Any]:
  """Returns the sampling settings: a value, or all that occur."""
  said: dict[str, Any] = {"logprobs": "as recorded"}
  if chosen.logprobs:
    said["logprobs"] += f" ({chosen.logprobs})"
  for name in drafts[0].drawn.sampling:
    found = {draft.drawn.sampling[name] for draft in drafts}
    ordered = sorted(found, key=lambda x: np.inf if x is None else x)
    said[name] = ordered[0] if len(ordered) == 1 else ordered
  return said
