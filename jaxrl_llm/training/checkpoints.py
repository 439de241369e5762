"""Checkpoints: one folder `step_N` per saved state, N = updates applied.

A folder holds what is trained of the parameters, the optimizer, and as JSON
the counters, the position in the plan, the lineage, the allocation state and
the config. Orbax writes it under another name and renames it, so it is there
as a whole or not at all; older ones are deleted only after that. A critic moves
where the policy does not, so it has a folder of its own, `critic_N` after N
updates of its own, applied or skipped, that the JSON names.
"""

from collections.abc import Mapping
import dataclasses
import errno
import json
import os
import pathlib
import re
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import optax
from orbax import checkpoint as ocp

from jaxrl_llm import types
from jaxrl_llm.data import atomic
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import state as state_lib

# Files without which a part of a checkpoint is not there.
_ARRAYS = "_METADATA"
_ITEMS = {"params": _ARRAYS, "optimizer": _ARRAYS, "meta": "metadata"}


@dataclasses.dataclass(frozen=True)
class Restored:
  """What a checkpoint gives back.

  Attributes:
    state: the trainer's state.
    config: the JSON object that was saved with it.
  """

  state: state_lib.TrainState
  config: Mapping[str, Any]


def complete_steps(folder: pathlib.Path | str) -> dict[int, pathlib.Path]:
  """Returns the complete checkpoints of a folder, by ascending number."""
  found = {}
  for path in pathlib.Path(folder).glob("step_*"):
    match = re.fullmatch(r"step_(\d+)", path.name)
    if match and all((path / k / v).exists() for k, v in _ITEMS.items()):
      found[int(match[1])] = path
  return dict(sorted(found.items()))


def latest(folder: pathlib.Path | str) -> pathlib.Path | None:
  """Returns the complete checkpoint with the highest number, or None."""
  return next(reversed(complete_steps(folder).values()), None)


def save(
    folder: pathlib.Path | str,
    state: state_lib.TrainState,
    *,
    kept: int,
    config: Mapping[str, Any],
) -> pathlib.Path:
  """Writes a checkpoint, then deletes all but the last `kept`.

  Of a number that is already there only the JSON is written anew: since that
  checkpoint no update was applied, but the position may have moved on, past a
  round that taught nothing.

  Args:
    folder: holds the checkpoints; made if missing.
    state: what to save.
    kept: checkpoints that stay.
    config: JSON object, for the reader and for `restore`.

  Returns:
    The folder of the checkpoint.

  Raises:
    OSError: the disk is full; the checkpoints that were there stay.
  """
  folder = pathlib.Path(folder).resolve()
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f"step_{state.updates}"
  meta = {
      "counters": {
          name: int(value) for name, value in vars(state.counters).items()
      },
      "position": dataclasses.asdict(state.position),
      "lineage": state.lineage,
      "config": config,
      "allocation": state.allocation,
  }
  if state.critic is not None:
    meta["critic"] = _save_critic(folder, state.critic).name
  meta = json.loads(json.dumps(meta))
  if state.updates in complete_steps(folder):
    if jax.process_index() == 0:
      _move_on(path / "meta" / _ITEMS["meta"], meta)
  else:
    _write(
        path,
        params=ocp.args.StandardSave(policy_lib.trained(state.params)),
        optimizer=ocp.args.StandardSave(state.opt_state),
        meta=ocp.args.JsonSave(meta),
    )
  if jax.process_index() == 0:
    _delete_old(folder, kept)
  return path


def _save_critic(
    folder: pathlib.Path, critic: state_lib.CriticState
) -> pathlib.Path:
  """Writes the critic's folder, unless it is there."""
  counters = critic.counters
  steps = int(counters.updates) + int(counters.bad_updates)
  path = folder / f"critic_{steps}"
  if not (path / "state" / _ARRAYS).exists():
    _write(path, state=ocp.args.StandardSave(critic))
  return path


def save_tree(path: pathlib.Path, tree: types.PyTree) -> None:
  """Writes a tree of arrays as a folder, which is there whole or not at all."""
  _write(path.resolve(), state=ocp.args.StandardSave(tree))


def restore_tree(path: pathlib.Path, like: types.PyTree) -> types.PyTree:
  """Reads what `save_tree` wrote, onto the shapes and shardings of `like`."""
  like = jax.tree.map(_abstract, like)
  return _read(path.resolve(), state=ocp.args.StandardRestore(like)).state


def _write(path: pathlib.Path, **items) -> None:
  """Writes a folder as a whole; what a killed writer left of it goes."""
  if jax.process_index() == 0:
    for leftover in path.parent.glob("*_*.orbax-checkpoint-tmp*"):
      shutil.rmtree(leftover)
    shutil.rmtree(path, ignore_errors=True)
  try:
    with _checkpointer() as checkpointer:
      checkpointer.save(path, args=ocp.args.Composite(**items))
  except ValueError as error:
    # How the library of the arrays' files words a full disk.
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    reason = os.strerror(errno.ENOSPC)
    raise OSError(errno.ENOSPC, reason, str(path)) from error


def _delete_old(folder: pathlib.Path, kept: int) -> None:
  """Deletes all but the last checkpoints, and critics that none names."""
  paths = list(complete_steps(folder).values())
  for old in paths[:-kept]:
    shutil.rmtree(old)
  named = {_meta(path).get("critic") for path in paths[-kept:]}
  for critic in folder.glob("critic_*"):
    if critic.name not in named:
      shutil.rmtree(critic)


def _meta(path: pathlib.Path) -> dict[str, Any]:
  """Reads the JSON of a complete checkpoint."""
  file = path / "meta" / _ITEMS["meta"]
  return json.loads(file.read_text(encoding="utf-8"))


def _move_on(path: pathlib.Path, meta: Mapping[str, Any]) -> None:
  """Replaces the JSON of a checkpoint whose arrays stay, unless it is equal."""
  if json.loads(path.read_text(encoding="utf-8")) != meta:
    atomic.write_json(path, meta)


def restore(
    path: pathlib.Path | str,
    params_like: types.PyTree,
    optimizer: optax.GradientTransformation | None,
    critic_like: state_lib.CriticState | None = None,
) -> Restored:
  """Reads a checkpoint back, onto the shardings of `params_like`.

  Args:
    path: a folder that `latest` returned.
    params_like: arrays or ShapeDtypeStructs of the same tree; their shardings
      say where the restored arrays lie. What is not trained is not in a
      checkpoint: it is what it is here.
    optimizer: the one that the state was made with; None leaves its state on
      the disk, as sampling needs none.
    critic_like: shapes and shardings of the critic, of an objective with one.

  Raises:
    ValueError: the checkpoint cannot be read into this tree, or it has no
      critic where there should be one.
  """
  path = pathlib.Path(path).resolve()
  like = jax.tree.map(_abstract, policy_lib.trained(params_like))
  wanted = {"params": ocp.args.StandardRestore(like)}
  if optimizer is not None:
    wanted["optimizer"] = ocp.args.StandardRestore(
        state_lib.abstract_opt_state(optimizer, like)
    )
  items = _read(path, meta=ocp.args.JsonRestore(), **wanted)
  meta = items.meta
  counters = {
      name: jnp.asarray(value, jnp.int32)
      for name, value in meta["counters"].items()
  }
  critic = None
  if critic_like is not None:
    critic = _read_critic(path, meta, critic_like)
  state = state_lib.TrainState(
      params=policy_lib.with_trained(params_like, items.params),
      opt_state=None if optimizer is None else items.optimizer,
      counters=state_lib.Counters(**counters),
      position=state_lib.Position(**meta["position"]),
      lineage=meta["lineage"],
      allocation=meta["allocation"],
      critic=critic,
  )
  return Restored(state, meta["config"])


def _read_critic(
    path: pathlib.Path,
    meta: Mapping[str, Any],
    like: state_lib.CriticState,
) -> state_lib.CriticState:
  """Reads the critic that a checkpoint names."""
  if "critic" not in meta:
    raise ValueError(
        f"{path}: expected a checkpoint with a critic, found one of an"
        " objective without; restore the objective it was made with, or start"
        " in a new --workdir."
    )
  # Left behind, a damaged critic would be taken for one that is saved.
  remedy = f"delete it and {path.name}"
  items = {"state": ocp.args.StandardRestore(like)}
  return _read(path.parent / meta["critic"], remedy, **items).state


def restore_params(
    path: pathlib.Path | str, params_like: types.PyTree
) -> types.PyTree:
  """Reads the parameters alone, as `restore` would."""
  like = jax.tree.map(_abstract, policy_lib.trained(params_like))
  path = pathlib.Path(path).resolve()
  params = _read(path, params=ocp.args.StandardRestore(like)).params
  return policy_lib.with_trained(params_like, params)


def _checkpointer() -> ocp.Checkpointer:
  return ocp.Checkpointer(ocp.CompositeCheckpointHandler())


def _read(path: pathlib.Path, remedy: str = "delete the folder", **items):
  try:
    with _checkpointer() as checkpointer:
      return checkpointer.restore(path, args=ocp.args.Composite(**items))
  except Exception as error:
    # Orbax words arrays that cannot be read by no class of its own, and with
    # pages of details.
    unread = type(error) is Exception
    if not unread and not isinstance(error, (ValueError, KeyError, OSError)):
      raise
    reason = re.split(r"\n| \[|\. See full", str(error), maxsplit=1)[0]
    raise ValueError(
        f"{path}: expected a checkpoint of this model and optimizer, found"
        f" {reason}; restore the settings it was made with, or {remedy} to"
        " fall back to the one before."
    ) from error


def _abstract(leaf) -> jax.ShapeDtypeStruct:
  sharding = getattr(leaf, "sharding", None)
  if sharding is None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
