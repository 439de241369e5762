"""Writes the rollouts of a round to shards, in a job that resumes.

A plan fixes, before anything is sampled, which responses lie in which shard.
Each shard is generated on its own, from empty slots until they are drained,
and each token is drawn with a key that names it. So a shard's bytes depend on
the weights, the seed, the plan and the settings, and neither on who writes it
nor on what was killed before.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import time
from typing import Any

import jax

from jaxrl_llm import types
from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.data import shards as shards_lib
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.rollout import engine as engine_lib
from jaxrl_llm.rollout import planning
from jaxrl_llm.rollout import progress as progress_lib
from jaxrl_llm.rollout import records
from jaxrl_llm.rollout import rewards
from jaxrl_llm.rollout import sampler
from jaxrl_llm.rollout import summary
from jaxrl_llm.rollout import windows

Prompt = prompts_lib.Prompt
PyTree = types.PyTree


@dataclasses.dataclass(frozen=True)
class GenerationSettings:
  """How rounds are generated (config.generation); see configs/base.py."""

  prompts_per_round: int = 16
  samples_per_prompt: int = 8
  slots: int = 32
  prefill_rows: int = 8
  prompt_buckets: tuple[int, ...] = (64, 128)
  steps_per_call: int = 8
  records_per_shard: int = 64
  window: int = 0
  spread_weights: bool = False

  def __post_init__(self):
    object.__setattr__(self, "prompt_buckets", tuple(self.prompt_buckets))
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      least = 0 if field.name == "window" else 1
      counts = field.name not in ("prompt_buckets", "spread_weights")
      if counts and value < least:
        raise ValueError(
            f"generation.{field.name}: expected an integer >= {least}, found "
            f"{value!r}; raise it."
        )
    buckets = self.prompt_buckets
    whole = all(isinstance(bucket, int) and bucket > 0 for bucket in buckets)
    if not buckets or not whole or list(buckets) != sorted(set(buckets)):
      raise ValueError(
          "generation.prompt_buckets: expected ascending lengths in tokens, "
          f"found {buckets}; write for example (64, 128)."
      )

  def cuts(self, sampling: sampler.SamplingSettings) -> bool:
    """Whether the window can end before a response does."""
    return 0 < self.window < sampling.max_new_tokens

  @property
  def shapes(self) -> engine_lib.Shapes:
    """What the engine compiles for."""
    return engine_lib.Shapes(
        self.slots,
        self.prefill_rows,
        self.prompt_buckets,
        self.steps_per_call,
        self.spread_weights,
    )


@dataclasses.dataclass(frozen=True)
class Sampled:
  """A response with its text.

  Attributes:
    response: tokens, log-probs and the reason of its end.
    text: decoded, without control tokens.
  """

  response: engine_lib.Response
  text: str


def sample(
    policy: policy_lib.Policy,
    params: PyTree,
    tokenizer: tokenizer_lib.Tokenizer,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: sampler.SamplingSettings,
    settings: GenerationSettings,
    *,
    seed: int,
    stream: str = "evaluation",
    mesh: jax.sharding.Mesh | None = None,
    progress: bool = True,
) -> list[list[Sampled]]:
  """Answers prompts outside of any round.

  The same seed draws the same noise for the same prompt and sample, so two
  policies are compared on common random numbers.

  Args:
    policy: the network.
    params: its parameters.
    tokenizer: decodes, and names the ids that end a response.
    prompts: with distinct ids.
    samples: responses per prompt.
    sampling: temperature 0 takes the most likely tokens.
    settings: shapes of the engine.
    seed: root of the random streams.
    stream: one of sampler.STREAMS.
    mesh: as Engine takes it.
    progress: show a bar.

  Returns:
    The responses of each prompt, in order.
  """
  engine = engine_lib.Engine(
      policy, params, tokenizer.stop_ids, sampling, settings.shapes, mesh=mesh
  )
  requests = [
      records.request(
          prompt, stream, seed, 0, range(samples), sampling.temperature
      )
      for prompt in prompts
  ]
  answers: list[list[Sampled]] = [[None] * samples for _ in prompts]
  total = len(prompts) * samples
  with progress_lib.bar("Answering", total, progress) as advance:
    for index, place, response in engine.run(requests):
      answers[index][place] = Sampled(
          response, records.text_of(tokenizer, response.tokens)
      )
      advance(1)
  return answers


def generate_round(
    policy: policy_lib.Policy,
    params: PyTree,
    tokenizer: tokenizer_lib.Tokenizer,
    prompts: Sequence[Prompt],
    counts: Sequence[int],
    sampling: sampler.SamplingSettings,
    settings: GenerationSettings,
    *,
    folder: str | os.PathLike[str],
    version: int,
    lineage: str,
    round_number: int,
    seed: int,
    grader: rewards.Grader,
    continued: Sequence[types.Rollout] = (),
    config: Mapping[str, Any] | None = None,
    baselines: bool = False,
    host: int = 0,
    hosts: int = 1,
    mesh: jax.sharding.Mesh | None = None,
    masters: PyTree | None = None,
    progress: bool = True,
) -> summary.RoundStats:
  """Generates, grades and writes what one host owes to a round.

  With settings.window a round adds at most that many tokens to a response;
  one that is cut so is to be given, as `continued`, to the next round.

  Killed at any moment and called again with the same arguments, it writes the
  shards that are missing, with the bytes that they would have had.

  Args:
    policy: the network.
    params: its parameters.
    tokenizer: decodes, and names the ids that end a response.
    prompts: of the round, with distinct ids.
    counts: new samples of each prompt.
    sampling: temperature above 0.
    settings: window, shapes of the engine and size of shards.
    folder: of this host's shards.
    version: optimizer updates of the policy.
    lineage: versions compare only within one lineage.
    round_number: k, folded into every key.
    seed: root of the random streams.
    grader: gives rewards.
    continued: unfinished records of the round before, in the order of
      `windows.unfinished`; their prompts are among `prompts`, with count 0.
    config: what a reader may want to know, JSON values; a resume must give
      the same.
    baselines: also a greedy response of each prompt, in the role baseline.
    host: which of `hosts` this is; it writes every hosts-th shard.
    hosts: that share the round.
    mesh: as Engine takes it.
    masters: that `params` were rounded from, which name the weights; None
      where nothing was rounded. Where they lie over hosts, all must call.
    progress: show a bar.

  Returns:
    Numbers over this host's records, found and made.

  Raises:
    ValueError: the folder was begun with other settings, a shard in it is
      damaged, or an argument does not fit; in one line, with the remedy.
  """
  wanted = records.Round(
      tokenizer, prompts, sampling, grader, lineage, round_number, version,
      seed, continued,
  )
  plan = _plan(wanted, counts, settings, baselines, hosts)
  own = plan[host::hosts]
  settled = {
      "seed": seed,
      "plan": planning.fingerprint(plan),
      "continued": windows.fingerprint(continued),
      "host": host,
      "hosts": hosts,
      "generation": dataclasses.asdict(settings),
      "runtime": f"jax {jax.__version__} on {jax.default_backend()}",
  }
  named = params if masters is None else masters
  metadata = wanted.metadata(named, {"job": settled, **(config or {})})
  writer = shards_lib.ShardWriter(folder, metadata, len(own))
  engine, tally = None, summary.Tally()
  total = sum(piece.records for pieces in own for piece in pieces)
  with progress_lib.bar(f"Round {round_number}", total, progress) as advance:
    for index, pieces in enumerate(own):
      if writer.path(index).is_file():
        tally.add(_found(writer, index, wanted.record_ids(pieces)))
        advance(sum(piece.records for piece in pieces))
        continue
      engine = engine or engine_lib.Engine(
          policy, params, tokenizer.stop_ids, sampling, settings.shapes,
          settings.window, mesh,
      )
      started, responses = time.monotonic(), {}
      for number, place, response in engine.run(wanted.requests(pieces)):
        responses[number, place] = response
        advance(1)
      seconds = time.monotonic() - started
      rollouts = wanted.rollouts(pieces, responses)
      writer.write(index, rollouts)
      tally.add(rollouts, seconds)
  writer.finish()
  return tally.finish()


def _plan(
    wanted: records.Round,
    counts: Sequence[int],
    settings: GenerationSettings,
    baselines: bool,
    hosts: int,
) -> list[tuple[planning.Piece, ...]]:
  """Plans the shards of all hosts; see `generate_round`."""
  if baselines and settings.cuts(wanted.sampling):
    raise ValueError(
        "generation.window: expected 0 where greedy baselines are drawn, "
        f"found {settings.window}; they are compared with whole responses."
    )
  plan = planning.plan(
      counts, settings.records_per_shard, baselines, wanted.continued_places()
  )
  if len(plan) < hosts or len(counts) != len(wanted.prompts):
    raise ValueError(
        "generation: expected a count per prompt and a shard per host, found "
        f"{len(counts)} counts, {len(wanted.prompts)} prompts, {len(plan)} "
        f"shards and {hosts} hosts; lower generation.records_per_shard for "
        "more shards."
    )
  return plan


def _found(
    writer: shards_lib.ShardWriter, index: int, expected: Sequence[int]
) -> list[types.Rollout]:
  """Reads a shard of an earlier run and compares its records with the plan."""
  rollouts = writer.read(index)
  if [rollout.record_id for rollout in rollouts] != list(expected):
    raise ValueError(
        f"{writer.path(index)}: expected the {len(expected)} records of the "
        f"plan, found {len(rollouts)} others; delete it and run the same "
        "`generate` again."
    )
  return rollouts
