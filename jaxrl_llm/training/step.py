"""The jitted functions of training, with shardings and donation spelled out.

One update is: zero totals; add the loss and gradient sums of each micro-batch;
apply the optimizer once. Denominators were fixed before the mini-batch was
split (objective.denominators), so the sums simply add.
"""

from collections.abc import Callable
import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from jaxrl_llm import types
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import optimizer as optimizer_lib
from jaxrl_llm.training import scoring
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib

Array = types.Array
PyTree = types.PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Totals:
  """Sums over the micro-batches seen so far.

  Attributes:
    grads: tree of what is trained of the parameters.
    loss: scalar; the optimised quantity once all micro-batches are in.
    metrics: mergeable sums by name.
  """

  grads: PyTree
  loss: Array
  metrics: PyTree


@dataclasses.dataclass(frozen=True)
class Steps:
  """The compiled functions of one run.

  Attributes:
    advantages: objective.advantages of the run's spec.
    score: (params, batch, topk) -> TokenLogprobs, without a gradient; topk is
      static.
    denominators: (terms of a whole mini-batch, whether curation weights
      multiply every term) -> per-token weights by name; the latter is static.
    start_sums: (params, batch) -> statistics of nothing.
    add_sums: (params, sums, batch) -> sums; the gradient-free first pass,
      called only if the objective asks for statistics. Donates the sums.
    start: (params, batch, weights, sums) -> Totals of nothing.
    add: (params, totals, batch, weights, sums) -> totals. Donates the totals.
    apply: the same as `update`, on what is trained of the parameters alone;
      a jitted function.
    update: (params, opt_state, counters, totals) -> the first three anew, and
      scalars by name (see journal.Entry). Donates the first three, of params
      what is trained.
  """

  advantages: Callable
  score: Callable
  denominators: Callable
  start_sums: Callable
  add_sums: Callable
  start: Callable
  add: Callable
  apply: Callable
  update: Callable


def token_logprobs(
    policy: policy_lib.Policy, params: PyTree, batch: types.Batch, **asked
) -> policy_lib.TokenLogprobs:
  """Scores the trained tokens of a micro-batch; see Policy.token_logprobs."""
  return policy.token_logprobs(
      params,
      batch.tokens,
      batch.segment_ids,
      batch.parent_ids,
      batch.positions,
      batch.temperatures,
      batch.terms.mask,
      **asked,
  )


def live_terms(
    policy: policy_lib.Policy,
    spec: objective.Spec,
    params: PyTree,
    batch: types.Batch,
    plain: bool = False,
) -> types.Terms:
  """Fills in what the live policy says of a micro-batch.

  With `plain` the result is differentiable forward (jax.jvp), not backward.
  """
  needs = objective.requirements(spec)
  wants_topk = bool(needs.behavior_topk or needs.proximal_topk)
  scored = token_logprobs(
      policy,
      params,
      batch,
      gather_ids=batch.terms.topk_ids if wants_topk else None,
      entropy=needs.entropy,
      plain=plain,
  )
  return dataclasses.replace(
      batch.terms,
      logprobs=scored.logprobs,
      entropy=scored.entropy,
      topk_logprobs=scored.gathered,
  )


def microbatch_loss(
    policy: policy_lib.Policy,
    spec: objective.Spec,
    params: PyTree,
    batch: types.Batch,
    weights: PyTree,
    statistics: PyTree | None,
) -> tuple[Array, PyTree]:
  """Returns a micro-batch's share of the loss, and its metric sums."""
  terms = live_terms(policy, spec, params, batch)
  output = objective.apply(spec, terms, weights, statistics)
  return output.loss, output.metrics


@functools.lru_cache(maxsize=8)
def build(
    policy: policy_lib.Policy,
    spec: objective.Spec,
    settings: settings_lib.TrainSettings,
    mesh: jax.sharding.Mesh,
) -> Steps:
  """Makes the functions; each compiles on first use, for one batch shape.

  The same arguments give the same functions, so the rounds of a run compile
  once.

  Args:
    policy: the network.
    spec: the objective.
    settings: the optimizer's are read.
    mesh: where parameters and the rows of micro-batches lie.
  """
  optimizer = optimizer_lib.build(settings)
  everywhere = sharding_lib.replicated(mesh)
  trained_at, opt_at = state_lib.shardings(policy, optimizer, mesh)
  totals_at = Totals(trained_at, everywhere, everywhere)

  def loss(params, batch, weights, sums):
    return microbatch_loss(policy, spec, params, batch, weights, sums)

  def sums_of(params, batch):
    terms = live_terms(policy, spec, params, batch)
    return objective.statistics(spec, terms)

  def score(params, batch, topk):
    return token_logprobs(policy, params, batch, topk=topk)

  def start_sums(params, batch):
    return _zeros(jax.eval_shape(sums_of, params, batch))

  def add_sums(params, sums, batch):
    return jax.tree.map(jnp.add, sums, sums_of(params, batch))

  apply = jax.jit(
      functools.partial(apply_totals, settings),
      donate_argnums=(0, 1, 2),
      out_shardings=(trained_at, opt_at, everywhere, everywhere),
  )

  def update(params, *others):
    # What is not trained takes no part, so that others may hold it too.
    moved, *results = apply(policy_lib.trained(params), *others)
    return policy_lib.with_trained(params, moved), *results

  return Steps(
      advantages=jax.jit(functools.partial(objective.advantages, spec)),
      score=jax.jit(score, static_argnums=2, out_shardings=everywhere),
      denominators=jax.jit(
          functools.partial(objective.denominators, spec),
          static_argnums=1,
          out_shardings=scoring.places_of_whole(mesh),
      ),
      start_sums=jax.jit(start_sums, out_shardings=everywhere),
      add_sums=jax.jit(add_sums, donate_argnums=1, out_shardings=everywhere),
      start=jax.jit(
          functools.partial(no_totals, loss), out_shardings=totals_at
      ),
      add=jax.jit(
          functools.partial(add_totals, loss),
          donate_argnums=1,
          out_shardings=totals_at,
      ),
      apply=apply,
      update=update,
  )


def no_totals(loss: Callable, params: PyTree, *inputs) -> Totals:
  """Totals of nothing, for `add_totals` with the same arguments."""
  value, metrics = jax.eval_shape(loss, params, *inputs)
  grads = _zeros(policy_lib.trained(params))
  return Totals(grads, _zeros(value), _no_metrics(metrics))


def add_totals(
    loss: Callable, params: PyTree, totals: Totals, *inputs
) -> Totals:
  """Adds one micro-batch.

  Args:
    loss: (params, *inputs) -> (share of the loss, metric sums).
    params: the gradient is taken in what is trained of these.
    totals: so far.
    *inputs: of the micro-batch.
  """
  gradient = jax.value_and_grad(
      lambda part: loss(policy_lib.with_trained(params, part), *inputs),
      has_aux=True,
  )
  (value, metrics), grads = gradient(policy_lib.trained(params))
  return Totals(
      jax.tree.map(jnp.add, totals.grads, grads),
      totals.loss + value,
      types.merge_metrics(totals.metrics, metrics),
  )


def apply_totals(
    settings: settings_lib.TrainSettings,
    params: PyTree,
    opt_state: PyTree,
    counters: state_lib.Counters,
    totals: Totals,
) -> tuple[PyTree, PyTree, state_lib.Counters, dict[str, Array]]:
  """Applies the optimizer of the settings once; see Steps.update."""
  optimizer = optimizer_lib.build(settings)
  rate = optimizer_lib.schedule(settings)(counters.updates)
  *moved, outcome = _update(optimizer, params, opt_state, counters, totals)
  return *moved, outcome | {"learning_rate": jnp.asarray(rate)}


def _update(optimizer, params, opt_state, counters, totals):
  """Applies the optimizer, or changes nothing if a number is not finite."""
  norm = optax.tree.norm(totals.grads)
  deltas, moved = optimizer.update(totals.grads, opt_state, params)
  stride = optax.tree.norm(deltas)
  finite = jnp.isfinite(jnp.stack([norm, totals.loss, stride])).all()
  stepped = optax.apply_updates(params, deltas)
  params, opt_state = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old),
      (stepped, moved),
      (params, opt_state),
  )
  one = jnp.int32(1)
  counters = state_lib.Counters(
      updates=counters.updates + jnp.where(finite, one, 0),
      bad_updates=counters.bad_updates + jnp.where(finite, 0, one),
      bad_in_a_row=jnp.where(finite, 0, counters.bad_in_a_row + one),
  )
  outcome = {
      "grad_norm": norm,
      "skipped": ~finite,
      "updates": counters.updates,
      "bad_in_a_row": counters.bad_in_a_row,
  }
  return params, opt_state, counters, outcome


def _zeros(tree):
  return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def _no_metrics(metrics):
  """Returns what leaves every metric as it is when merged with it."""

  def neutral(metric):
    empty = -jnp.inf if isinstance(metric, types.Max) else 0
    return jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, empty, leaf.dtype), metric
    )

  return {name: neutral(metric) for name, metric in metrics.items()}
