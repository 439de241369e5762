"""Responses token by token: how far the policy moved, and what is cut.

prepared/ holds what was known before the first update on a rollout batch; the
live log-probs of an update are gone when it is over. So a handful of records
is scored anew by the parameters at hand, those that the run has in memory or
those of the latest checkpoint: `judge` fills in the live terms as a training
step does and asks the objective's own ratio part and trust region. What it
shows is thus the state after the newest update: which tokens one more update
on this batch would cut. Without parameters, `recorded` compares the proximal
with the behaviour policy, and nothing is said of cutting.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import pathlib

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import manifest
from jaxrl_llm.data import packing
from jaxrl_llm.data import shards
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.losses import tokens as tokens_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import scoring
from jaxrl_llm.training import step
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib


@dataclasses.dataclass(frozen=True)
class Sample:
  """One response; arrays are [R], NaN or False on tokens not trained on.

  Attributes:
    rollout: the record.
    advantages: float, constant over a response unless the objective is a
      critic's; NaN where nothing was prepared.
    log_ratios: float, nats, of each token by itself; NaN where not known.
    objective_log_ratios: float, nats, what the objective's ratio part made;
      NaN where not known.
    cut_mask: bool, tokens without a gradient; None where not known.
  """

  rollout: types.Rollout
  advantages: np.ndarray
  log_ratios: np.ndarray
  objective_log_ratios: np.ndarray
  cut_mask: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Chosen:
  """Some records of a round and what was prepared for them.

  Attributes:
    round: their number.
    rollouts: N records, by falling advantage, or reward where nothing was
      prepared.
    terms: by name, an entry per record; empty where nothing was prepared.
  """

  round: int
  rollouts: Sequence[types.Rollout]
  terms: Mapping[str, Sequence[np.ndarray]]


def choose(
    workdir: pathlib.Path, folders: Sequence[pathlib.Path], count: int
) -> Chosen:
  """Takes records of the newest round that was prepared, else generated.

  They are spread evenly over the order of their advantages (rewards), so the
  best and the worst are among them; the same files give the same records.

  Args:
    workdir: of the run.
    folders: of its shards, finished or not.
    count: of records.

  Raises:
    ValueError: there is nothing to choose from.
    OSError: a file cannot be read.
  """
  finished = [
      folder for folder in folders if (folder / manifest.NAME).is_file()
  ]
  prepared = sorted((workdir / "prepared").glob("round_*/batch_*.npz"))
  if prepared:
    return _prepared(prepared[-1], finished, count)
  if not finished:
    raise ValueError("There is no finished shard folder to take them from.")
  number = max(shards.read_metadata(folder).round for folder in finished)
  rollouts = [
      rollout
      for folder in finished
      if shards.read_metadata(folder).round == number
      for rollout in _records(folder)
      if rollout.role == "train"
  ]
  order = sorted(
      rollouts, key=lambda one: (-np.nan_to_num(one.reward), one.record_id)
  )
  return Chosen(number, _spread(order, count), {})


def judge(
    trainer: trainer_lib.Trainer,
    params: types.PyTree,
    chosen: Chosen,
    updates: int,
) -> list[Sample]:
  """Scores records by parameters at hand.

  Args:
    trainer: of the run, with its controls; its micro-batches' shape is used.
    params: of the policy.
    chosen: with prepared terms.
    updates: applied to the parameters.

  Raises:
    ValueError: a term that the objective reads was not prepared.
  """
  terms = {k: v for k, v in chosen.terms.items() if k in trainer.terms}
  lacking = {name for name in trainer.terms - set(terms) if name != "weights"}
  if lacking:
    raise ValueError(
        f"prepared/ holds no {', '.join(sorted(lacking))} of these records."
    )
  function = _judge(trainer.policy, trainer.spec, trainer.mesh)

  def score(batch):
    version = np.int32(updates)
    return function(
        params, minibatch.complete(trainer, batch, updates, version)
    )

  index = indices.Index.of(chosen.rollouts)
  with jax.set_mesh(trainer.mesh):
    found = scoring.over_rows(
        score,
        chosen.rollouts.__getitem__,
        index,
        packing.pack_indexed(index, trainer.shape.tokens),
        trainer.shape,
        trainer.rows,
        terms,
    )
  samples = []
  for number, rollout in enumerate(chosen.rollouts):
    trained = indices.trained_mask(rollout)
    log_ratios, logs, cut = (
        found[name][number] for name in ("token", "objective", "cut")
    )
    if "weights" in chosen.terms:
      cut = cut | (chosen.terms["weights"][number] == 0)
    samples.append(
        Sample(
            rollout=rollout,
            advantages=_over_tokens(chosen, number),
            log_ratios=np.where(trained, log_ratios, np.nan),
            objective_log_ratios=np.where(trained, logs, np.nan),
            cut_mask=cut & trained if judges(trainer.spec) else None,
        )
    )
  return samples


def judges(spec: objective.Spec) -> bool:
  """Whether a few records alone show what is cut.

  An objective that takes statistics over a whole mini-batch, or compares its
  sequences, does not say so of a handful.
  """
  return not objective.requirements(spec).statistics


def recorded(chosen: Chosen) -> list[Sample]:
  """Compares proximal with behaviour policy, where both are known."""
  samples = []
  for number, rollout in enumerate(chosen.rollouts):
    log_ratios = np.full(rollout.response_tokens.size, np.nan)
    if "proximal_logprobs" in chosen.terms:
      behavior = rollout.behavior_logprobs + rollout.log_kept_mass
      gaps = chosen.terms["proximal_logprobs"][number] - behavior
      log_ratios = np.where(indices.trained_mask(rollout), gaps, np.nan)
    samples.append(
        Sample(
            rollout=rollout,
            advantages=_over_tokens(chosen, number),
            log_ratios=log_ratios,
            objective_log_ratios=np.full_like(log_ratios, np.nan),
            cut_mask=None,
        )
    )
  return samples


@functools.lru_cache(maxsize=8)
def _judge(
    policy: policy_lib.Policy, spec: objective.Spec, mesh: jax.sharding.Mesh
):
  """Makes the function of a placed micro-batch; it compiles once a run."""
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

  def judge_rows(params, batch):
    terms = step.live_terms(policy, spec, params, batch)
    own = spec_lib.with_controls(spec, terms.controls)
    terms = tokens_lib.with_proximal(own, tokens_lib.selected(own, terms))
    if not judges(spec):
      gaps = tokens_lib.view(own, terms).log_ratios()
      nothing = jax.numpy.full_like(gaps, np.nan)
      return {"token": gaps, "objective": nothing, "cut": ~terms.mask}
    tokens, log_ratios, _, region = objective.verdict(own, terms)
    cut = ~(region.active & tokens.layout.mask)
    return {"token": tokens.log_ratios(), "objective": log_ratios, "cut": cut}

  return jax.jit(judge_rows, out_shardings=everywhere)


def _prepared(
    path: pathlib.Path, folders: Sequence[pathlib.Path], count: int
) -> Chosen:
  """Chooses among the records of a prepared rollout batch."""
  number = int(path.parent.name.removeprefix("round_"))
  prepared = stored.load(path)
  advantages = prepared.of(prepared.record_ids)["advantages"]
  means = [float(np.mean(value)) for value in advantages]
  ids = [int(record_id) for record_id in prepared.record_ids]
  order = sorted(zip(means, ids), key=lambda pair: (-pair[0], pair[1]))
  wanted = [record_id for _, record_id in _spread(order, count)]
  found: dict[int, types.Rollout] = {}
  # From the newest folder on: a run's batch lies in its last rounds.
  for folder in reversed(folders):
    if len(found) == len(wanted):
      break
    for rollout in _records(folder):
      if rollout.record_id in wanted:
        found[rollout.record_id] = rollout
  lacking = len(wanted) - len(found)
  if lacking:
    raise ValueError(
        f"{lacking} of {len(wanted)} records of {path} are in no shard folder"
        " that was found: the rollouts were taken away, or train.rollouts names"
        " a folder relative to another place."
    )
  return Chosen(
      number, [found[record_id] for record_id in wanted], prepared.of(wanted)
  )


def _records(folder: pathlib.Path):
  opened = shards.open_folder(folder)
  return (opened[position] for position in range(len(opened)))


def _spread(order: Sequence, count: int) -> list:
  """Takes `count` of a sequence at even distances, both ends among them."""
  places = np.linspace(0, len(order) - 1, min(count, len(order)))
  return [order[place] for place in np.unique(np.round(places).astype(int))]


def _over_tokens(chosen: Chosen, number: int) -> np.ndarray:
  size = chosen.rollouts[number].response_tokens.size
  if "advantages" not in chosen.terms:
    return np.full(size, np.nan)
  return np.broadcast_to(chosen.terms["advantages"][number], size)
