"""The runs behind a study of staleness: shards of each policy version."""

from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib

import ml_collections

from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.verbs import allocation
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import generate
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import run
from jaxrl_llm.verbs import train


@dataclasses.dataclass(frozen=True)
class Versions:
  """What one seed's run left: shards of each version, and the last policy.

  Attributes:
    job: model, held-out problems and grader of the seed.
    workdir: of the run.
    checkpoint: of the policy vK.
    rounds: K.
  """

  job: parts.Job
  workdir: pathlib.Path
  checkpoint: pathlib.Path
  rounds: int

  def state(
      self, checkpoint: pathlib.Path | None = None
  ) -> state_lib.TrainState:
    """Reads a checkpoint: by default vK, which every cell starts from."""
    config = self.job.config
    optimizer = optimizer_lib.build(parts.train_settings(config))
    like = parts.start_like(config, self.job.model)
    path = checkpoint or self.checkpoint
    return checkpoints.restore(path, like, optimizer).state

  def folders(self, lag: int) -> list[pathlib.Path]:
    """Lists the shard folders that v(K − lag) wrote.

    Raises:
      FileNotFoundError: there are none.
    """
    place = folders.round_folder(self.workdir, self.rounds - lag)
    if lag > self.rounds or not place.is_dir():
      raise FileNotFoundError(
          f"lab.lags: lag {lag} needs the shards of round"
          f" {self.rounds - lag} under {self.workdir}, found none; name"
          " smaller lags, or run the verb generate there for lag 0."
      )
    return folders.rollouts(str(place), None)


def named(config: ml_collections.ConfigDict) -> list[pathlib.Path]:
  """Lists the working directories that lab.versions names.

  Raises:
    ValueError: another number than that of the seeds.
  """
  names = [name for name in config.lab.versions.split(",") if name]
  if names and len(names) != len(config.lab.seeds):
    raise ValueError(
        "lab.versions: expected a working directory for each of"
        f" {len(config.lab.seeds)} seeds (lab.seeds), found {len(names)};"
        " correct one of them."
    )
  return [pathlib.Path(name).absolute() for name in names]


def make(
    job: parts.Job, workdir: pathlib.Path, rounds: int | None
) -> Versions:
  """Brings a run to where its last policy has drawn its round.

  Args:
    job: of the seed.
    workdir: of the run.
    rounds: K; None takes a run that is there, as far as it is.
  """
  if rounds is None:
    path = parts.checkpoint(job.config, workdir, "")
    made = Versions(job, workdir, path, 0)
    return dataclasses.replace(made, rounds=made.state().position.round)
  workdir.mkdir(parents=True, exist_ok=True)
  record.agree(job.config, generate.SECTIONS, workdir)
  state = train.start(job.config, job.model, workdir)
  while state.position.round < rounds:
    with quiet(workdir / "log.txt"):
      state = run.round_of(job, state, workdir)
    print(
        f"seed {job.config.seed}: {state.position.round} of {rounds} rounds,"
        f" {state.updates} updates",
        flush=True,
    )
  with quiet(workdir / "log.txt"):
    state, plan = allocation.next_plan(job, state, workdir)
    generate.round_of(job, state, plan, workdir)
  path = checkpoints.latest(folders.checkpoints(workdir))
  if path is None:
    raise ValueError(
        "lab.lags: no round of the versions' run was trained on, so there is"
        " no lag; name a lag above 0."
    )
  return Versions(job, workdir, path, rounds)


@contextlib.contextmanager
def quiet(log: pathlib.Path) -> Iterator[None]:
  """Appends to a file what is printed."""
  with log.open("a", encoding="utf-8") as file:
    with contextlib.redirect_stdout(file):
      yield
