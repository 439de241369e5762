"""Writes what became of a run as one page, and its pictures as PNGs.

report.html needs no network and says what is missing and why; the PNGs lie in
report/. --config.report.workdirs=DIR,DIR shows several runs side by side. Needs
no --config: model and objective are those that the working directory records.
Works on any run, a killed one or one that goes on; `run` does so after each
round.
"""

from collections.abc import Sequence
import dataclasses
import os
import pathlib

import jax
import ml_collections

from jaxrl_llm import types
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.lab import report
from jaxrl_llm.lab import rollouts
from jaxrl_llm.lab import samples
from jaxrl_llm.lab import workdir as workdir_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.training import bandit
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib
from jaxrl_llm.verbs import critics
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import recorded

SECTIONS = ("report",)
_RECORDED = (
    "Coloured by proximal / behavior, what was known before the first update on"
    " them; what is cut is not known."
)


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Writes the report of the runs that are named."""
  chosen = _chosen(config, workdir)
  workdir = flags.require_workdir(workdir, "report")
  report.check_place(workdir)
  runs = _read(chosen, workdir)
  texts = [_of_checkpoint(run, config) for run in runs]
  print(f"report: {report.write(runs, texts, workdir)}")


def refresh(
    job: parts.Job, state: state_lib.TrainState, workdir: pathlib.Path
) -> None:
  """Writes the report of a run from within, with its parameters at hand.

  Whatever goes wrong is said in one line and stops nothing: the report can be
  written later, the run cannot.
  """
  if jax.process_index() != 0:
    return
  try:
    (run,) = _read([workdir], workdir)
    texts = _of_state(run, job, state)
    report.write([run], [texts], workdir)
  except Exception as error:
    reason = " ".join(str(error).split())
    print(
        f"report: not written ({type(error).__name__}: {reason}); the run goes"
        f" on, python -m jaxrl_llm report --workdir={workdir} tries again"
    )


def _chosen(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> list[pathlib.Path]:
  """Lists the working directories to show.

  Raises:
    FileNotFoundError: one of them does not exist.
    ValueError: a key has a value that means nothing.
  """
  if config.report.samples < 0:
    raise ValueError(
        f"report.samples: expected at least 0, found {config.report.samples}."
    )
  names = [name for name in config.report.workdirs.split(",") if name]
  chosen = [pathlib.Path(name).absolute() for name in names]
  if not chosen and workdir is not None:
    chosen = [workdir]
  for path in chosen:
    if not path.is_dir():
      raise FileNotFoundError(
          f"{path}: there is no such working directory; correct --workdir or"
          " report.workdirs."
      )
  return list(dict.fromkeys(chosen))


def _read(
    chosen: Sequence[pathlib.Path], workdir: pathlib.Path
) -> list[workdir_lib.Run]:
  """Reads the runs; each is named by what tells it from the others."""
  shared = os.path.commonpath([path.parent for path in chosen])
  cache = report.cache_of(workdir)
  return [
      workdir_lib.read(path, os.path.relpath(path, shared), cache)
      for path in chosen
  ]


def _of_state(
    run: workdir_lib.Run, job: parts.Job, state: state_lib.TrainState
) -> report.Texts:
  """Samples of a run that is going on, judged by its parameters."""
  tokenizer = job.model.tokenizer
  count = job.config.report.samples
  chosen = _choose(run, count)
  if isinstance(chosen, report.Texts):
    return chosen
  if jax.process_count() > 1:
    reason = "Parameters that lie on several hosts are not asked."
    return _recorded(chosen, tokenizer, reason)
  try:
    return _judged(
        job.config, job.model.policy, state.params, state.updates, run, chosen,
        tokenizer,
    )
  except (ValueError, OSError) as error:
    return _recorded(chosen, tokenizer, str(error))


def _of_checkpoint(
    run: workdir_lib.Run, config: ml_collections.ConfigDict
) -> report.Texts:
  """Samples of a run, judged by its latest checkpoint."""
  chosen = _choose(run, config.report.samples)
  if isinstance(chosen, report.Texts):
    return chosen
  tokenizer = None
  try:
    config = recorded.restore(config, run.config)
    tokenizer = parts.tokenizer(config)
    path = checkpoints.latest(folders.checkpoints(run.path))
    if path is None:
      raise ValueError("There is no checkpoint to judge them by.")
    model = parts.model(config, tokenizer)
    like = parts.start_like(config, model)
    params = checkpoints.restore_params(path, like)
    updates = int(path.name.removeprefix("step_"))
    return _judged(
        config, model.policy, params, updates, run, chosen, tokenizer
    )
  except (ValueError, OSError) as error:
    return _recorded(chosen, tokenizer, str(error))


def _choose(
    run: workdir_lib.Run, count: int
) -> samples.Chosen | report.Texts:
  """Chooses records; where there is none, the words that say why."""
  if not count:
    return report.Texts((), "", None, "", ("report.samples=0 shows none.",))
  named = run.config.get("train.rollouts") or ""
  try:
    return samples.choose(
        run.path, rollouts.folders(run.path, named), count
    )
  except (ValueError, OSError) as error:
    return report.Texts((), "", None, "", (str(error),))


def _recorded(
    chosen: samples.Chosen,
    tokenizer: tokenizer_lib.Tokenizer | None,
    reason: str,
) -> report.Texts:
  """Samples with what is recorded of them, and why there is no more."""
  found = samples.recorded(chosen)
  words = [f"Not judged by the policy as it is now: {reason}"]
  lead = f"Responses of round {chosen.round}."
  if not chosen.terms:
    words.append("Nothing was prepared for them: they were not trained on.")
  elif "proximal_logprobs" in chosen.terms:
    lead += f" {_RECORDED}"
  else:
    words.append("prepared/ holds no proximal log-probs of them.")
  if tokenizer is None:
    words.append("Their tokenizer cannot be read: tokens are numbers.")
  return report.Texts(
      found, "proximal / behavior", tokenizer, lead, tuple(words)
  )


def _judged(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    params: types.PyTree,
    updates: int,
    run: workdir_lib.Run,
    chosen: samples.Chosen,
    tokenizer: tokenizer_lib.Tokenizer,
) -> report.Texts:
  """Samples with what the objective makes of them under some parameters.

  Raises:
    ValueError: the records were not prepared for the objective.
  """
  if not chosen.terms:
    return _recorded(chosen, tokenizer, "there is no advantage to judge by.")
  settings, spec = parts.train_settings(config), parts.spec(config)
  trainer = trainer_lib.build(
      policy,
      spec,
      settings,
      mesh=sharding.make_mesh(config.mesh),
      seed=config.seed,
      # Its log-probs lie in prepared/; these parameters are never read.
      reference_params=params,
      critic=critics.build(config, policy),
  )
  if bandit.path_of(run.path, chosen.round).is_file():
    bounds = bandit.chosen_controls(run.path, chosen.round)
    trainer = dataclasses.replace(trainer, controls=bounds)
  found = samples.judge(trainer, params, chosen, updates)
  lead = (
      f"Responses of round {chosen.round}, by falling advantage. Coloured by"
      f" live / {spec.anchor} after update {updates}: what one more update on"
      " them would see, and cut."
  )
  words = []
  if not samples.judges(spec):
    words.append(
        f"What {spec.name} cuts depends on a whole mini-batch: it is not shown."
    )
  if trainer.needs.key:
    words.append("Tokens that the selection exempts were drawn for this page.")
  return report.Texts(
      found, f"live / {spec.anchor}", tokenizer, lead, tuple(words)
  )
