"""What a working directory says of its run, and why it is silent.

A run may be going on, killed, or made by `generate` or `train` alone, so
nothing has to be there: of what is missing `Run.missing` says why, of what
could not be read `Run.notes`.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from jaxrl_llm.data import atomic
from jaxrl_llm.evaluation import evaluate as evaluate_lib
from jaxrl_llm.evaluation import results
from jaxrl_llm.lab import rollouts as rollouts_lib
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.training import metrics as metrics_lib

_REMEDY = "restore it to see more"
# What a source that is not there would come from.
_ABSENT = {
    "config": "There is no config.json: no verb has begun its work here.",
    "metrics": (
        "There is no metrics.jsonl: it begins with the first rollout batch"
        " that is trained on"
    ),
    "evaluations": (
        "There is no finished evaluation under evaluations/: the verbs run and"
        " evaluate write them."
    ),
    "feedback": (
        "There is no file in feedback/: it is written when a round has been"
        " trained on to its end."
    ),
    "plans": (
        "There is no file in allocation/: the verbs run and generate write a"
        " plan before each round, imported and foreign rollouts have none."
    ),
    "rollouts": (
        "There is no finished shard folder under rollouts/: no round was"
        " generated to its end here, or the folders were taken away."
    ),
}


@dataclasses.dataclass(frozen=True)
class Run:
  """What was found of a run.

  Attributes:
    name: what tells it from the others of a report.
    path: of its working directory.
    config: recorded keys, {"train.epochs": 2, …}.
    progress: of run.json.
    metrics: records of metrics.jsonl.
    evaluations: by title, in order of updates.
    feedback: groups by round.
    plans: responses planned for each prompt, by round.
    rollouts: what was sampled, by round.
    missing: of each of these that is empty, by attribute, the reason.
    notes: lines about what is there and could not be read.
  """

  name: str
  path: pathlib.Path
  config: Mapping[str, Any]
  progress: Mapping[str, Any]
  metrics: Sequence[Mapping[str, Any]]
  evaluations: Mapping[str, evaluate_lib.Evaluation]
  feedback: Mapping[int, Sequence[Mapping[str, Any]]]
  plans: Mapping[int, Sequence[int]]
  rollouts: Mapping[int, rollouts_lib.Responses]
  missing: Mapping[str, str]
  notes: Sequence[str]

  def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
    """Returns the records of metrics.jsonl of one kind, in order."""
    return [record for record in self.metrics if record["kind"] == kind]

  @property
  def ratio(self) -> str:
    """Name of the objective's ratio part; empty where it is not known."""
    try:
      return self.spec().choice("ratio")
    except ValueError:
      return ""

  def spec(self) -> objective.Spec:
    """Makes the objective that config.json names.

    Raises:
      ValueError: it names none, or one that this version does not know.
    """
    chosen = {
        key.removeprefix("objective."): value
        for key, value in self.config.items()
        if key.startswith("objective.") and value is not None
    }
    if "name" not in chosen:
      raise ValueError("config.json names no objective: nothing was trained.")
    return algorithms.build(chosen)


def read(workdir: pathlib.Path, name: str, cache: pathlib.Path) -> Run:
  """Reads what is there.

  Args:
    workdir: of the run.
    name: of the run.
    cache: see rollouts.by_round.
  """
  notes: list[str] = []

  def attempt(reader: Callable[[], Any], empty: Any) -> Any:
    try:
      return reader()
    except (OSError, ValueError, KeyError, TypeError) as error:
      notes.append(_one_line(error))
      return empty

  config = attempt(lambda: _json(workdir / "config.json"), {})
  progress = attempt(lambda: _json(workdir / "run.json"), {})
  folders = rollouts_lib.folders(workdir, config.get("train.rollouts") or "")
  counted, unread = attempt(
      lambda: rollouts_lib.by_round(folders, cache), ({}, [])
  )
  notes += unread
  found = {
      "config": config,
      "metrics": attempt(lambda: _metrics(workdir, notes), []),
      "evaluations": attempt(
          lambda: _evaluations(workdir, progress, notes), {}
      ),
      "feedback": attempt(
          lambda: _rounds(workdir / "feedback", "groups", _is_group), {}
      ),
      "plans": attempt(
          lambda: _rounds(workdir / "allocation", "counts", _is_count), {}
      ),
      "rollouts": counted,
  }
  return Run(
      name=name,
      path=workdir,
      progress=progress,
      missing=_missing(found, workdir),
      notes=tuple(notes),
      **found,
  )


def _missing(found: Mapping[str, Any], workdir: pathlib.Path) -> dict[str, str]:
  """Says why what is empty is so."""
  reasons = {name: _ABSENT[name] for name in _ABSENT if not found[name]}
  if "metrics" in reasons:
    if (workdir / "metrics.jsonl").is_file():
      reasons["metrics"] = "metrics.jsonl holds no record: none was written yet"
    generated = "nothing was generated here to its end."
    if found["rollouts"]:
      count = len(found["rollouts"])
      generated = f"{count} rounds were generated, none was trained on."
    reasons["metrics"] += f"; {generated}"
  return reasons


def _metrics(workdir: pathlib.Path, notes: list[str]) -> list[dict[str, Any]]:
  """Reads metrics.jsonl, and notes where it breaks off."""
  path = workdir / "metrics.jsonl"
  if not path.is_file():
    return []
  records = metrics_lib.read(path)
  lines = len(path.read_text(encoding="utf-8").splitlines())
  if len(records) < lines:
    notes.append(
        f"{path}: line {len(records) + 1} of {lines} is no record (a kill cuts"
        " the last one short); it and what follows are left out."
    )
  return records


def _evaluations(
    workdir: pathlib.Path, progress: Mapping[str, Any], notes: list[str]
) -> dict[str, evaluate_lib.Evaluation]:
  """Reads the finished evaluations that measured what the newest one did."""
  noted = progress.get("evaluations", {})
  if not isinstance(noted, dict):
    raise ValueError(f"{workdir / 'run.json'}: it names no evaluations.")
  titles = {folder: title for title, folder in noted.items()}
  found = {}
  for path in workdir.glob(f"evaluations/*/{results.RESULTS_FILE}"):
    name = str(path.parent.relative_to(workdir))
    try:
      found[name] = evaluate_lib.load(path.parent)
    except (OSError, ValueError) as error:
      notes.append(_one_line(error))
  if not found:
    return {}
  order = sorted(found, key=lambda name: (found[name].details["updates"], name))
  newest = _measured(found[order[-1]])
  alike = [name for name in order if _measured(found[name]) == newest]
  if len(alike) < len(order):
    notes.append(
        f"evaluations/: {len(order) - len(alike)} of {len(order)} are of other"
        " problems or settings than the newest; they are left out."
    )
  return {
      titles.get(name, f"after {found[name].details['updates']} updates"): (
          found[name]
      )
      for name in alike
  }


def _measured(evaluation: evaluate_lib.Evaluation) -> tuple[Any, ...]:
  """Returns what two evaluations must share to be compared."""
  chosen = dataclasses.replace(
      evaluation.settings, checkpoint="", every_rounds=0
  )
  return chosen, evaluation.details.get("prompts")


def _rounds(
    folder: pathlib.Path, name: str, fits: Callable[[Any], bool]
) -> dict[int, list[Any]]:
  """Reads one list of every round_K.json of a folder."""
  found = {}
  for path in sorted(folder.glob("round_*.json")):
    content = atomic.read_json(path, ("round", name), _REMEDY)
    entries = content[name]
    if not isinstance(entries, list) or not all(map(fits, entries)):
      raise ValueError(f"{path}: {name} is no list as it should be; {_REMEDY}.")
    found[content["round"]] = entries
  return found


def _is_group(value: Any) -> bool:
  return isinstance(value, dict) and {"samples", "correct"} <= set(value)


def _is_count(value: Any) -> bool:
  return isinstance(value, int)


def _json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object; an absent file is an empty one."""
  return atomic.read_json(path, (), _REMEDY) if path.is_file() else {}


def _one_line(error: Exception) -> str:
  return f"{type(error).__name__}: {' '.join(str(error).split())}"
