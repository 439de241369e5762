"""Policies that spend all that a prefix budget leaves them, at every prefix."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from experiments.theory import tabular
from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import budgets
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import spec as spec_lib
from jaxrl_llm.losses import tokens as tokens_lib

VOCABULARY = 3
# Policies stay this share within their limits, so that no rounding cuts.
MARGIN = 1e-9


@dataclasses.dataclass(frozen=True)
class Region:
  """δ, δ_b and ω_min."""

  delta: float = 0.15
  delta_b: float = 0.015
  omega_min: float = 0.8


def build() -> objective.Spec:
  """CPPO whose top-K is the whole vocabulary: D_t is the exact TV."""
  return algorithms.build({
      "name": "cppo_prefix", "divergence": "topk_tv",
      "divergence_topk": VOCABULARY, "delta": 0.15, "delta_b": 0.015,
      "omega_min": 0.8,
  })


# ω_t D_t [N] that position t may have, after what the prefix spent.
Limits = Callable[[budgets.Spending, int, Region], np.ndarray]


@functools.partial(jax.jit, static_argnums=0)
def walk(
    spec: objective.Spec, batch: types.Terms
) -> tuple[budgets.Spending, jax.Array]:
  """(what every prefix spent, tokens that the region cuts), [N, T]."""
  spec = spec_lib.with_controls(spec, batch.controls)
  tokens = tokens_lib.view(spec, batch)
  log_ratios, _ = tokens_lib.ratio_logs(spec, tokens)
  region = spec.trust_region(log_ratios, tokens, None)
  return spec.trust_region.spending(tokens), ~region.active


def spend(
    region: Region,
    behavior: np.ndarray,
    live: np.ndarray,
    everything: tabular.Responses,
) -> tuple[budgets.Spending, np.ndarray]:
  """`walk` over all responses, every moved token moving away from μ."""
  gaps = tabular.pick(live, everything) - tabular.pick(behavior, everything)
  batch = tabular.terms(behavior, live, np.sign(gaps), everything)
  batch = dataclasses.replace(batch, controls=dataclasses.asdict(region))
  return jax.tree.map(np.asarray, walk(build(), batch))


def theorem_limits(
    spent: budgets.Spending, t: int, region: Region
) -> np.ndarray:
  """Largest ω_t D_t that Theorem 1 admits: c_t, and δ_b W_t − S_{t−1}."""
  before = np.sum(spent.costs[:, :t], axis=1)
  allowed = region.delta_b * np.sum(spent.position_weights[:, : t + 1], axis=1)
  last = t == spent.costs.shape[1] - 1
  return spent.budgets[:, t] if last else np.minimum(
      spent.budgets[:, t], allowed - before
  )


def frugal_limits(
    spent: budgets.Spending, t: int, region: Region
) -> np.ndarray:
  """Half of what Theorem 1 admits."""
  return 0.5 * theorem_limits(spent, t, region)


def eager_limits(
    spent: budgets.Spending, t: int, region: Region
) -> np.ndarray:
  """Half of Eq 8's budget for the first token, then all that is left."""
  return spent.budgets[:, t] * (0.5 if t == 0 else 1.0)


def uniform_limits(
    spent: budgets.Spending, t: int, region: Region
) -> np.ndarray:
  """D_t = δ."""
  return region.delta * spent.position_weights[:, t]


def saturated(
    rng: np.random.Generator,
    region: Region,
    behavior: np.ndarray,
    everything: tabular.Responses,
    limits: Limits,
) -> np.ndarray:
  """A policy that spends its limit at every prefix, log-probs [S, V]."""
  live = np.exp(behavior)
  for t, states in enumerate(everything.states.T):
    spent, _ = spend(region, behavior, np.log(live), everything)
    costs = np.maximum(limits(spent, t, region), 0.0) * (1.0 - MARGIN)
    distances = np.zeros(len(live))
    distances[states] = costs / spent.position_weights[:, t]
    rows = np.unique(states)
    rich = np.argmax(live[rows], axis=1)
    other = (rich + rng.integers(1, VOCABULARY, len(rows))) % VOCABULARY
    live[rows, rich] -= distances[rows]
    live[rows, other] += distances[rows]
  return np.log(live)
