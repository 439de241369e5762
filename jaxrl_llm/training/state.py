"""Everything that a resumed run needs to go on as if never interrupted."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from jaxrl_llm import types


@dataclasses.dataclass(frozen=True, order=True)
class Position:
  """The mini-batch to be trained on next, counted from 0 at every level."""

  round: int = 0
  batch: int = 0
  epoch: int = 0
  minibatch: int = 0


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


@dataclasses.dataclass(frozen=True)
class TrainState:
  """The trainer between two updates.

  Attributes:
    params: float32 master parameters.
    opt_state: of the optimizer in optimizer.py.
    counters: see Counters.
    position: the mini-batch that comes next.
    lineage: versions of policies compare only within one lineage.
  """

  params: types.PyTree
  opt_state: types.PyTree
  counters: Counters
  position: Position
  lineage: str

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

  The parameters are copied: training donates its own buffers, and the caller
  may keep the given ones as a reference policy.

  Raises:
    ValueError: a parameter array is not float32 (float64 is let through when
      64-bit mode is on, for tests).
  """
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if jnp.dtype(leaf.dtype) not in (jnp.float32, jnp.float64):
      raise ValueError(
          f"params{jax.tree_util.keystr(path)}: expected float32 masters,"
          f" found {leaf.dtype}; cast the tree before training."
      )
  params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
  shardings = jax.tree.map(
      lambda leaf: leaf.sharding, abstract_opt_state(optimizer, params)
  )
  zero = lambda: jnp.zeros((), jnp.int32)
  return TrainState(
      params=params,
      opt_state=jax.jit(optimizer.init, out_shardings=shardings)(params),
      counters=Counters(zero(), zero(), zero()),
      position=Position(),
      lineage=lineage,
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
