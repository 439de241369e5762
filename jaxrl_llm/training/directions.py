"""The validation gradient of influence, where rollout batches share one.

The batch that makes it stores it beside the prepared terms; a later batch, or
a resumed run, reads it: the weights that made it are gone by then.
"""

import pathlib
import shutil

import jax

from jaxrl_llm import types
from jaxrl_llm.data import plan
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import attribution
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import rounds
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer as trainer_lib


def obtain(
    trainer: trainer_lib.Trainer,
    state: state_lib.TrainState,
    work: rounds.Round,
    batch: plan.RolloutBatch,
    prepared: stored.Prepared,
    path: pathlib.Path,
) -> types.PyTree:
  """Returns v for a rollout batch that was not prepared yet.

  Every curation.refresh_batches-th batch of the run makes it anew, from the
  weights that it begins with.

  Args:
    trainer: of a run whose curation reads scores.
    state: before the first update on the batch.
    work: the round.
    batch: of the round.
    prepared: its terms.
    path: where the batch's terms will lie, beside those of all earlier ones.

  Raises:
    ValueError: the stored one is gone.
  """
  every = trainer.curation.refresh_batches
  if every == 1:
    return attribution.direction_of(trainer, state, work, batch, prepared)
  number = _batches_before(path)
  folder = path.parents[1]
  place = folder / f"direction_{number - number % every}"
  if number % every:
    if not place.is_dir():
      raise ValueError(
          f"{place}: missing, and the weights that it was made with have moved"
          " on; restore it, or start in a new --workdir."
      )
    return checkpoints.restore_tree(
        place, policy_lib.trained(state.params)
    )
  made = attribution.direction_of(trainer, state, work, batch, prepared)
  checkpoints.save_tree(place, made)
  if jax.process_index() == 0:
    for other in folder.glob("direction_*"):
      if other != place:
        shutil.rmtree(other)
  return made


def _batches_before(path: pathlib.Path) -> int:
  """Counts the rollout batches that were prepared before this one."""
  order = lambda file: (file.parent.name, file.name)
  files = path.parents[1].glob("round_*/batch_*.npz")
  return sum(order(file) < order(path) for file in files)
