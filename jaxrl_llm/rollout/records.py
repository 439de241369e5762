"""Turns prompts into requests, and responses into graded records."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np

import jaxrl_llm
from jaxrl_llm import types
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.data import schema
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.rollout import engine as engine_lib
from jaxrl_llm.rollout import planning
from jaxrl_llm.rollout import rewards
from jaxrl_llm.rollout import sampler
from jaxrl_llm.rollout import windows

# Beside the grader's own parts, each record says whether an answer was found.
PARSED = "parsed"
# Packages whose code decides the bytes of a record.
_CODE = ("data", "models", "rollout")


@dataclasses.dataclass(frozen=True)
class Round:
  """What the records of a round have in common.

  Attributes:
    tokenizer: decodes responses.
    prompts: of the round, with distinct ids.
    sampling: temperature above 0.
    grader: gives rewards.
    lineage: policy versions compare only within one lineage.
    number: k.
    version: optimizer updates of the policy.
    seed: root of the random streams.
    continued: unfinished records of the round before, of some of the prompts.
  """

  tokenizer: tokenizer_lib.Tokenizer
  prompts: Sequence[prompts_lib.Prompt]
  sampling: sampler.SamplingSettings
  grader: rewards.Grader
  lineage: str
  number: int
  version: int
  seed: int
  continued: Sequence[types.Rollout] = ()

  def __post_init__(self):
    if not self.sampling.temperature:
      raise ValueError(
          "sampling.temperature: expected a number > 0 for rollouts, found 0; "
          "greedy responses have no ratio to correct, sample at 1.0 instead."
      )
    ids = [prompt.prompt_id for prompt in self.prompts]
    if len(set(ids)) < len(ids):
      raise ValueError(
          f"prompts: expected distinct ids, found {len(set(ids))} in "
          f"{len(ids)} prompts; drop repeated problems."
      )

  def metadata(
      self, params: types.PyTree, config: Mapping[str, Any]
  ) -> schema.FolderMetadata:
    """Describes the folder; `config` holds what the bytes depend on besides."""
    return schema.FolderMetadata(
        lineage=self.lineage,
        round=self.number,
        policy_version=self.version,
        weights_fingerprint=policy_lib.fingerprint(params),
        tokenizer_fingerprint=self.tokenizer.fingerprint,
        prompts_fingerprint=prompts_lib.fingerprint(self.prompts),
        sampling=dataclasses.asdict(self.sampling),
        config=config,
        code_version=code_version(),
        topk=self.sampling.record_topk,
        reward_parts=tuple(sorted((*self.grader.part_names, PARSED))),
    )

  def continued_places(self) -> list[tuple[int, int]]:
    """Returns (index of the prompt, j) of each response that goes on.

    Raises:
      ValueError: it has ended, or its prompt is not one of the round.
    """
    index_of = {x.prompt_id: index for index, x in enumerate(self.prompts)}
    for rollout in self.continued:
      if not rollout.unfinished or rollout.prompt_id not in index_of:
        raise ValueError(
            f"record {rollout.record_id}: expected an unfinished response to "
            f"one of {len(index_of)} prompts, found one that ended with "
            f"{rollout.finish_reason!r}, of prompt {rollout.prompt_id}; "
            "continue those of windows.unfinished, with their prompts."
        )
    return [(index_of[x.prompt_id], x.sample_index) for x in self.continued]

  def requests(
      self, pieces: Iterable[planning.Piece]
  ) -> list[engine_lib.Request]:
    """Asks for the responses of a shard; a baseline follows its samples."""
    requests = []
    for piece in pieces:
      prompt = self.prompts[piece.prompt]
      asked = request(
          prompt,
          "rollout",
          self.seed,
          self.number,
          range(piece.first, piece.first + piece.count),
          self.sampling.temperature,
      )
      if piece.continued is not None:
        drawn = self.continued[piece.continued].response_tokens
        asked = dataclasses.replace(
            asked,
            tokens=np.concatenate([asked.tokens, drawn]),
            drawn=len(drawn),
        )
      if piece.baseline:
        greedy = request(prompt, "baseline", self.seed, self.number, [0], 0.0)
        asked = engine_lib.Request(
            asked.tokens,
            np.concatenate([asked.words, greedy.words]),
            np.concatenate([asked.temperatures, greedy.temperatures]),
        )
      requests.append(asked)
    return requests

  def record_ids(self, pieces: Iterable[planning.Piece]) -> list[int]:
    """Returns the ids of a shard's records, in order."""
    return [
        fingerprints.of_record(
            self.lineage,
            self.number,
            self.prompts[piece.prompt].prompt_id,
            sample_index,
        )
        for piece in pieces
        for sample_index in piece.sample_indices
    ]

  def rollouts(
      self,
      pieces: Iterable[planning.Piece],
      responses: Mapping[tuple[int, int], engine_lib.Response],
  ) -> list[types.Rollout]:
    """Grades a shard's responses and makes its records.

    Args:
      pieces: of the shard.
      responses: by index of the piece and of the response within it.
    """
    drawn = [
        self._rollout(piece, sample_index, responses[number, place])
        for number, piece in enumerate(pieces)
        for place, sample_index in enumerate(piece.sample_indices)
    ]
    prompts = {prompt.prompt_id: prompt for prompt in self.prompts}
    ended = [rollout for rollout in drawn if not rollout.unfinished]
    rewards_of = dict(
        zip(
            [rollout.record_id for rollout in ended],
            self.grader.grade(
                [(x.response_text, prompts[x.prompt_id]) for x in ended]
            ),
            strict=True,
        )
    )
    return [graded(x, rewards_of.get(x.record_id)) for x in drawn]

  def _rollout(self, piece, sample_index, response):
    """Makes one record, not graded yet."""
    prompt = self.prompts[piece.prompt]
    baseline = sample_index == planning.BASELINE
    versions = np.full(len(response.tokens), self.version, np.int32)
    window_start = 0
    if piece.continued is not None:
      earlier = self.continued[piece.continued]
      window_start = len(earlier.response_tokens)
      versions = np.concatenate([earlier.policy_versions, versions])
      response = windows.joined(earlier, response)
    key = (self.lineage, self.number, prompt.prompt_id)
    return types.Rollout(
        record_id=fingerprints.of_record(*key, sample_index),
        prompt_id=prompt.prompt_id,
        group_id=fingerprints.of_group(*key),
        sample_index=sample_index,
        round=self.number,
        prompt_tokens=np.asarray(prompt.tokens, np.int32),
        response_tokens=response.tokens,
        response_mask=np.ones(len(response.tokens), bool),
        behavior_logprobs=response.logprobs,
        log_kept_mass=response.log_kept_mass,
        policy_versions=versions,
        lineage=self.lineage,
        window_start=window_start,
        topk_ids=response.topk_ids,
        topk_logprobs=response.topk_logprobs,
        finish_reason=response.finish_reason,
        role="baseline" if baseline else "train",
        temperature=0.0 if baseline else self.sampling.temperature,
        reward=0.0,
        reward_parts=dict.fromkeys((*self.grader.part_names, PARSED), np.nan),
        reference_answer=prompt.answer,
        prompt_text=prompt.text,
        response_text=text_of(self.tokenizer, response.tokens),
    )


def graded(
    rollout: types.Rollout, reward: rewards.Reward | None
) -> types.Rollout:
  """Adds a reward to a record; None where it has not ended."""
  if reward is None:
    return rollout
  return dataclasses.replace(
      rollout,
      reward=np.nan if reward.failed else reward.total,
      reward_parts={**reward.parts, PARSED: float(reward.parsed)},
  )


def request(
    prompt: prompts_lib.Prompt,
    stream: str,
    seed: int,
    round_number: int,
    samples: Sequence[int],
    temperature: float,
) -> engine_lib.Request:
  """Asks for samples j of a prompt; see sampler.request_words."""
  words = sampler.request_words(
      stream, seed, round_number, [prompt.prompt_id] * len(samples), samples
  )
  temperatures = np.full(len(samples), temperature, np.float32)
  return engine_lib.Request(prompt.tokens, words, temperatures)


def text_of(
    tokenizer: tokenizer_lib.Tokenizer, tokens: np.ndarray
) -> str:
  """Decodes a response, without control tokens."""
  return tokenizer.decode(tokens, skip_special_tokens=True)


def code_version() -> str:
  """Names the release and a hash of the code that decides a record's bytes."""
  root = pathlib.Path(jaxrl_llm.__file__).parent
  digest = hashlib.sha256((root / "types.py").read_bytes())
  for package in _CODE:
    for path in sorted((root / package).glob("*.py")):
      digest.update(path.name.encode() + path.read_bytes())
  return f"{jaxrl_llm.__version__}+{digest.hexdigest()[:8]}"
