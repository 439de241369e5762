"""Measures a policy on the held-out problems.

Takes the latest checkpoint under --workdir, else the model;
--config.evaluation.checkpoint chooses another. Writes a line per problem and
the summary below evaluations/ and prints a table. What was measured before
with the same settings is read, not measured again. Without --config the
configuration is that of the working directory.
"""

import dataclasses
import hashlib
import json
import pathlib

import jax
import ml_collections
import rich
from rich import table as rich_table

from jaxrl_llm import hosts
from jaxrl_llm import types
from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.evaluation import evaluate as evaluate_lib
from jaxrl_llm.evaluation import results
from jaxrl_llm.evaluation import table
from jaxrl_llm.rollout import generator
from jaxrl_llm.rollout import sampler
from jaxrl_llm.training import checkpoints
from jaxrl_llm.verbs import distributed
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import keys
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record

SECTIONS = (
    "seed", "mesh", "distributed", "model", "prompts", "sampling",
    "generation", "reward", "evaluation",
)
# The start policy, as a value of evaluation.checkpoint.
START = "model"


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Evaluates one policy."""
  distributed.refuse_workers(config, "evaluate")
  workdir = flags.require_workdir(workdir, "evaluate")
  job = parts.job(config)
  params, updates = _chosen(job, workdir)
  found, folder = of(job, params, updates, workdir)
  show({f"after {updates} updates": found}, config.evaluation.confidence)
  print(f"evaluation: {folder}")


def of(
    job: parts.Job, params: types.PyTree, updates: int, workdir: pathlib.Path
) -> tuple[evaluate_lib.Evaluation, pathlib.Path]:
  """Evaluates parameters, or reads what an earlier run found.

  Args:
    job: model, prompts, grader.
    params: of the policy.
    updates: its version; 0 is the start policy.
    workdir: receives the results.

  Returns:
    The evaluation and its folder.
  """
  details = _details(job, updates)
  text = json.dumps(details, sort_keys=True)
  name = hashlib.sha256(text.encode()).hexdigest()[:8]
  folder = workdir / "evaluations" / f"step_{updates}-{name}"
  known = (folder / results.RESULTS_FILE).is_file()
  if json.loads(hosts.agree(json.dumps(known))):
    return evaluate_lib.load(folder), folder
  settings = parts.evaluation_settings(job.config)
  sampling = dataclasses.replace(
      parts.sampling_settings(job.config),
      temperature=settings.temperature,
      top_p=settings.top_p,
      record_topk=0,
  )
  responses = _responses(job, params, sampling, settings.samples)
  found = evaluate_lib.evaluate(
      responses, job.evaluation_prompts, job.grader, settings, details
  )
  if jax.process_index() == 0:
    evaluate_lib.save(found, folder)
  exact = found.estimates["exact_match"]
  print(f"exact match after {updates} updates: {100 * exact.value:.1f} %")
  return found, folder


def _responses(
    job: parts.Job,
    params: types.PyTree,
    sampling: sampler.SamplingSettings,
    samples: int,
) -> list[list[evaluate_lib.Response]]:
  """Answers the held-out problems, each host some of them."""
  first, step = jax.process_index(), jax.process_count()
  sampled = generator.sample(
      job.model.policy,
      parts.generating_copy(job.config, job.model.policy, params),
      job.model.tokenizer,
      job.evaluation_prompts[first::step],
      samples,
      sampling,
      parts.generation_settings(job.config),
      seed=job.config.seed,
      mesh=parts.generating_mesh(job.config),
  )
  own = [
      [dataclasses.asdict(response) for response in row]
      for row in evaluate_lib.from_samples(sampled)
  ]
  responses = [[] for _ in job.evaluation_prompts]
  for host, text in enumerate(hosts.exchange(json.dumps(own))):
    responses[host::step] = [
        [evaluate_lib.Response(**response) for response in row]
        for row in json.loads(text)
    ]
  return responses


def show(
    evaluations: dict[str, evaluate_lib.Evaluation], confidence: float
) -> None:
  """Prints evaluations of the same problems side by side, and the gain."""
  header, *body = table.rows(evaluations, confidence)
  shown = rich_table.Table(
      title=f"percent, with {100 * confidence:g} % intervals",
      title_justify="left",
  )
  for column in header:
    shown.add_column(column)
  for row in body:
    shown.add_row(*row)
  rich.print(shown)


def _details(job: parts.Job, updates: int) -> dict:
  """Returns what an evaluation depends on, as JSON values."""
  flat = record.select(job.config, SECTIONS)
  free = (*record.HARMLESS, "evaluation.every_rounds", "generation", "mesh")
  return {
      "updates": updates,
      "prompts": prompts_lib.fingerprint(job.evaluation_prompts),
      "config": {
          key: value for key, value in flat.items()
          if not keys.within(key, free)
      },
  }


def _chosen(
    job: parts.Job, workdir: pathlib.Path
) -> tuple[types.PyTree, int]:
  """Returns the parameters to evaluate and their number of updates."""
  wanted = job.config.evaluation.checkpoint
  some = checkpoints.latest(folders.checkpoints(workdir)) is not None
  if wanted == START or not (wanted or some):
    return job.model.start_params, 0
  path = parts.checkpoint(job.config, workdir, wanted)
  like = parts.start_like(job.config, job.model)
  params = checkpoints.restore_params(path, like)
  return params, int(path.name.removeprefix("step_"))
