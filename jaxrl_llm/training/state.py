"""Everything that a resumed run needs to go on as if never interrupted."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_llm import types
from jaxrl_llm.models import placement
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib


@dataclasses.dataclass(frozen=True)
class Position:
  """The mini-batch to be trained on next; every level counts from 0.

  Attributes:
    round: of generation.
    batch: rollout batch of the round.
    epoch: pass over the batch.
    minibatch: of the epoch; the number of mini-batches when it is over.
    round_updates: updates applied when the round began.
    batch_updates: updates applied when the rollout batch began.
  """

  round: int = 0
  batch: int = 0
  epoch: int = 0
  minibatch: int = 0
  round_updates: int = 0
  batch_updates: int = 0

  @property
  def begins_round(self) -> bool:
    return self.batch == 0 and self.begins_batch

  @property
  def begins_batch(self) -> bool:
    return self.epoch == 0 and self.minibatch == 0

  def next_minibatch(self) -> "Position":
    return dataclasses.replace(self, minibatch=self.minibatch + 1)

  def next_epoch(self) -> "Position":
    return dataclasses.replace(self, epoch=self.epoch + 1, minibatch=0)

  def next_batch(self, updates: int) -> "Position":
    return dataclasses.replace(
        self,
        batch=self.batch + 1,
        epoch=0,
        minibatch=0,
        batch_updates=updates,
    )

  def next_round(self, updates: int) -> "Position":
    return Position(
        self.round + 1, round_updates=updates, batch_updates=updates
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counters:
  """int32 scalars that live beside the parameters on the device.

  Attributes:
    updates: optimizer updates applied; the policy's version.
    bad_updates: updates skipped because a gradient was not finite.
    bad_in_a_row: of those, the ones since the last applied update.
  """

  updates: types.Array
  bad_updates: types.Array
  bad_in_a_row: types.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CriticState:
  """A critic between two updates.

  Attributes:
    params: {"head": of Policy.init_value_head}, and "trunk", float32 masters,
      where the critic is a network of its own.
    opt_state: of its optimizer.
    counters: of its own updates.
  """

  params: types.PyTree
  opt_state: types.PyTree
  counters: Counters


@dataclasses.dataclass(frozen=True)
class TrainState:
  """The trainer between two updates.

  Attributes:
    params: float32 master parameters, or adapters beside frozen weights (see
      Policy.start), of which the adapters are trained.
    opt_state: of the optimizer in optimizer.py; None of a state that only
      samples.
    counters: see Counters.
    position: the mini-batch that comes next.
    lineage: versions of policies compare only within one lineage.
    allocation: JSON object, state of the rollout allocation after some of the
      rounds before this one; None before the first.
    critic: of an objective that has one, or None.
  """

  params: types.PyTree
  opt_state: types.PyTree
  counters: Counters
  position: Position
  lineage: str
  allocation: Mapping[str, Any] | None = None
  critic: CriticState | None = None

  @property
  def updates(self) -> int:
    """Optimizer updates applied so far (waits for the device)."""
    return int(self.counters.updates)

  @property
  def steps(self) -> int:
    """Updates applied or skipped so far (waits for the device)."""
    return int(self.counters.updates) + int(self.counters.bad_updates)


def create(
    params: types.PyTree,
    optimizer: optax.GradientTransformation,
    lineage: str,
) -> TrainState:
  """Returns the state before the first update.

  What is trained is copied: training donates its own buffers, and the caller
  may keep the given ones as a reference policy.

  Raises:
    ValueError: a parameter array is not float32 (float64 is let through when
      64-bit mode is on, for tests).
  """
  trained = policy_lib.trained(params)
  for path, leaf in jax.tree_util.tree_leaves_with_path(trained):
    if jnp.dtype(leaf.dtype) not in (jnp.float32, jnp.float64):
      raise ValueError(
          f"params{jax.tree_util.keystr(path)}: expected float32 masters,"
          f" found {leaf.dtype}; cast the tree before training."
      )
  trained = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), trained)
  shardings = jax.tree.map(
      lambda leaf: leaf.sharding, abstract_opt_state(optimizer, trained)
  )
  return TrainState(
      params=policy_lib.with_trained(params, trained),
      opt_state=jax.jit(optimizer.init, out_shardings=shardings)(trained),
      counters=no_updates(),
      position=Position(),
      lineage=lineage,
  )


def no_updates() -> Counters:
  """Counters before the first update."""
  return Counters(*(jnp.zeros((), jnp.int32) for _ in range(3)))


def shardings(
    policy: policy_lib.Policy,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
) -> tuple[types.PyTree, types.PyTree]:
  """Returns where what is trained and optimizer state lie on a mesh."""
  shapes = policy_lib.trained(policy.shapes)
  trained_at = sharding_lib.shardings(
      mesh, policy_lib.trained(policy.logical_axes), shapes
  )
  trained = jax.tree.map(
      lambda shape, at: jax.ShapeDtypeStruct(
          shape.shape, shape.dtype, sharding=at
      ),
      shapes,
      trained_at,
  )
  opt_state = abstract_opt_state(optimizer, trained)
  return trained_at, jax.tree.map(lambda leaf: leaf.sharding, opt_state)


def place(
    state: TrainState,
    policy: policy_lib.Policy,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
) -> TrainState:
  """Moves a state onto a mesh; the given one must not be used afterwards."""
  _, opt_at = shardings(policy, optimizer, mesh)
  params_at = sharding_lib.shardings(mesh, policy.logical_axes, policy.shapes)
  return dataclasses.replace(
      state,
      params=placement.put(state.params, params_at),
      opt_state=placement.put(state.opt_state, opt_at),
      counters=placement.put(state.counters, sharding_lib.replicated(mesh)),
  )


def abstract_opt_state(
    optimizer: optax.GradientTransformation, params: types.PyTree
) -> types.PyTree:
  """Returns the optimizer's state as shapes, laid out as the parameters are.

  Args:
    optimizer: whose state it is.
    params: arrays or ShapeDtypeStructs with shardings.

  Returns:
    ShapeDtypeStructs: moments lie where their parameter lies, everything else
    on every device.
  """
  shapes = jax.eval_shape(optimizer.init, params)
  replicated = _replicated(jax.tree.leaves(params)[0].sharding)

  def like_param(shape, leaf):
    return jax.ShapeDtypeStruct(
        shape.shape, shape.dtype, sharding=leaf.sharding
    )

  def everywhere(shape):
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=replicated)

  return optax.tree_utils.tree_map_params(
      optimizer,
      like_param,
      shapes,
      params,
      transform_non_params=everywhere,
  )


def _replicated(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
  """Returns the sharding that holds a whole array on each of the devices."""
  if isinstance(sharding, jax.sharding.NamedSharding):
    return jax.sharding.NamedSharding(
        sharding.mesh, jax.sharding.PartitionSpec()
    )
  return sharding
