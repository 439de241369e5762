"""The critic of a run: its settings, its parameters, its compiled functions.

A critic is a value head on the policy's hidden states, or a network of its
own with such a head; either has its own optimizer. The value loss never moves
the policy. How a critic learns is in critic_learning.py.
"""

from collections.abc import Callable
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.losses import objective
from jaxrl_llm.models import placement
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import scoring
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import step

PyTree = types.PyTree
KINDS = ("network", "head")


@dataclasses.dataclass(frozen=True)
class CriticSettings:
  """How a critic learns (config.critic); see configs/base.py.

  Raises:
    ValueError: a value is out of range; the message names the key.
  """

  kind: str = "network"
  path: str = ""
  learning_rate: float | None = None
  warmup_updates: int = 0
  epochs: int = 1
  pretrain_rounds: int = 0

  def __post_init__(self):
    if self.kind not in KINDS:
      raise ValueError(
          f"critic.kind: expected one of {', '.join(KINDS)}, found"
          f" {self.kind!r}; correct it."
      )
    if self.path and self.kind == "head":
      raise ValueError(
          "critic.path: a head reads the policy's own network; set"
          " critic.kind=network, or leave critic.path unset."
      )
    for key, least in (
        ("warmup_updates", 0), ("epochs", 1), ("pretrain_rounds", 0)
    ):
      if not least <= getattr(self, key) < settings_lib.MOST_UPDATES:
        raise ValueError(
            f"critic.{key}: expected at least {least} and less than 2³¹, found"
            f" {getattr(self, key)}; correct it."
        )
    rate = self.learning_rate
    if rate is not None and not 0 <= rate < math.inf:
      raise ValueError(
          f"critic.learning_rate: expected 0 or more, found {rate}; correct"
          " it."
      )

  def training(
      self, settings: settings_lib.TrainSettings
  ) -> settings_lib.TrainSettings:
    """The trainer's settings with what is the critic's own."""
    rate = self.learning_rate
    return dataclasses.replace(
        settings,
        learning_rate=2 * settings.learning_rate if rate is None else rate,
        warmup_updates=self.warmup_updates,
        schedule="constant",
        total_updates=None,
        epochs=self.epochs,
    )


@dataclasses.dataclass(frozen=True)
class Steps:
  """The compiled functions of a critic.

  `params` are the critic's, `policy_params` the policy's.

  Attributes:
    values: (params, policy_params, batch) -> [B, T], V(s_t) or Q(s_t, y_t).
    targets: objective.value_targets of the run's spec.
    weights: (terms of a whole mini-batch) -> per-token weights of the loss.
    start: (params, policy_params, batch, weights) -> Totals of nothing.
    add: (params, totals, policy_params, batch, weights) -> totals. Donates
      the totals.
    update: as step.Steps.update.
  """

  values: Callable
  targets: Callable
  weights: Callable
  start: Callable
  add: Callable
  update: Callable


@dataclasses.dataclass(frozen=True)
class Critic:
  """What stays the same of a critic while a run trains.

  Attributes:
    network: that the value head reads.
    settings: of the critic.
    training: of its optimizer and its mini-batches.
    spec: the objective.
    mesh: devices.
  """

  network: policy_lib.Policy
  settings: CriticSettings
  training: settings_lib.TrainSettings
  spec: objective.Spec
  mesh: jax.sharding.Mesh

  @property
  def static(self) -> bool:
    """Whether it is frozen once it is pretrained."""
    return objective.requirements(self.spec).critic == "action"

  def pretrains(self, round_number: int) -> bool:
    """Whether a round trains the critic alone."""
    return round_number < self.settings.pretrain_rounds

  def learns(self, round_number: int) -> bool:
    """Whether a round trains the critic."""
    return self.pretrains(round_number) or not self.static

  @functools.cached_property
  def shapes(self) -> PyTree:
    """Shape structs of its parameters."""
    head = jax.eval_shape(self.network.init_value_head)
    if self.settings.kind == "head":
      return {"head": head}
    return {"head": head, "trunk": self.network.shapes}

  @property
  def places(self) -> PyTree:
    """Where its parameters lie."""
    everywhere = sharding_lib.replicated(self.mesh)
    found = {"head": {"weight": everywhere, "bias": everywhere}}
    if self.settings.kind == "network":
      found["trunk"] = sharding_lib.shardings(
          self.mesh, self.network.logical_axes, self.network.shapes
      )
    return found

  def like(self) -> state_lib.CriticState:
    """Its state as shapes with shardings, to be restored into."""
    params = jax.tree.map(
        lambda leaf, at: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=at
        ),
        self.shapes,
        self.places,
    )
    optimizer = optimizer_lib.build(self.training)
    everywhere = sharding_lib.replicated(self.mesh)
    counters = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=everywhere
        ),
        jax.eval_shape(state_lib.no_updates),
    )
    return state_lib.CriticState(
        params, state_lib.abstract_opt_state(optimizer, params), counters
    )

  def create(self, trunk: PyTree) -> state_lib.CriticState:
    """Its state before the first update: every value is 0.

    Args:
      trunk: float32 parameters that a network of its own starts from; copied.
    """
    at = jax.tree.map(lambda leaf: leaf.sharding, self.like())
    params = {"head": self.network.init_value_head()}
    if self.settings.kind == "network":
      params["trunk"] = jax.tree.map(
          lambda leaf: jnp.array(leaf, copy=True), trunk
      )
    params = placement.put(params, at.params)
    optimizer = optimizer_lib.build(self.training)
    init = jax.jit(optimizer.init, out_shardings=at.opt_state)
    counters = placement.put(state_lib.no_updates(), at.counters)
    return state_lib.CriticState(params, init(params), counters)

  @property
  def steps(self) -> Steps:
    """The compiled functions; the same for equal critics."""
    return _build(self)


def build(
    network: policy_lib.Policy,
    settings: CriticSettings,
    training: settings_lib.TrainSettings,
    spec: objective.Spec,
    mesh: jax.sharding.Mesh,
) -> Critic:
  """Checks what can be checked before anything is read.

  Args:
    network: that the value head reads: the policy's, or its own.
    settings: of the critic.
    training: of the policy.
    spec: an objective with a critic.
    mesh: devices.

  Raises:
    ValueError: a frozen critic that nothing pretrains.
  """
  critic = Critic(network, settings, settings.training(training), spec, mesh)
  if critic.static and not settings.pretrain_rounds:
    raise ValueError(
        f"critic.pretrain_rounds: {spec.name} has a critic that is frozen once"
        " it is pretrained, and an untrained one says 0 of every token; set it"
        " to 1 or more."
    )
  return critic


@functools.lru_cache(maxsize=8)
def _build(critic: Critic) -> Steps:
  """Makes the functions; each compiles on first use."""
  spec, network = critic.spec, critic.network
  before = objective.requirements(spec).critic == "state"
  everywhere = sharding_lib.replicated(critic.mesh)
  like = critic.like()
  at = jax.tree.map(lambda leaf: leaf.sharding, like)
  totals_at = step.Totals(at.params, everywhere, everywhere)

  def values(params, policy_params, batch):
    found = network.token_values(
        params.get("trunk", policy_params),
        params["head"],
        batch.tokens,
        batch.segment_ids,
        batch.parent_ids,
        batch.positions,
    )
    return jnp.pad(found[:, :-1], ((0, 0), (1, 0))) if before else found

  def loss(params, policy_params, batch, weights):
    terms = dataclasses.replace(
        batch.terms, values=values(params, policy_params, batch)
    )
    output = objective.value_loss(spec, terms, weights)
    return output.loss, output.metrics

  return Steps(
      values=jax.jit(values, out_shardings=everywhere),
      targets=jax.jit(functools.partial(objective.value_targets, spec)),
      weights=jax.jit(
          functools.partial(objective.value_weights, spec),
          out_shardings=scoring.places_of_whole(critic.mesh),
      ),
      start=jax.jit(
          functools.partial(step.no_totals, loss), out_shardings=totals_at
      ),
      add=jax.jit(
          functools.partial(step.add_totals, loss),
          donate_argnums=1,
          out_shardings=totals_at,
      ),
      update=jax.jit(
          functools.partial(step.apply_totals, critic.training),
          donate_argnums=(0, 1, 2),
          out_shardings=(at.params, at.opt_state, everywhere, everywhere),
      ),
  )
