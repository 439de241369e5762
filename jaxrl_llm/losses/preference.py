"""Direct preference optimization (arXiv 2305.18290) as a loss of tokens.

The loss couples the sequences of a pair, which may lie in different rows or
micro-batches. With D_i = Σ_t m_t (log π − log reference) summed in a first pass
over the mini-batch, L is a function of the D alone, so its gradient is
Σ_i (∂L/∂D_i) ∇D_i with constants ∂L/∂D_i: each sequence can be differentiated
where it lies. The value of a pair stands on the tokens of its chosen response.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import parts
from jaxrl_llm.losses import surrogates
from jaxrl_llm.losses import tokens as tokens_lib

Array = jax.Array


def prefers(scores: Array, groups: Array, best_worst: bool) -> Array:
  """Which sequence is chosen over which: its score is higher, group by group.

  Args:
    scores: float [N].
    groups: int [N]; -1 on sequences that are in no pair.
    best_worst: the highest of a group over its lowest alone, the first of
      equal ones; else all pairs of unequal scores.

  Returns:
    bool [N, N], True where the row's sequence is chosen over the column's.
  """
  same = (groups[:, None] == groups) & (groups[:, None] >= 0)
  above = same & (scores[:, None] > scores)
  if not best_worst:
    return above
  order = jnp.arange(scores.size)
  first = same & (scores[:, None] == scores) & (order[:, None] < order)
  # Column i is not the best if some row is above it, or equal and before it.
  best = ~jnp.any(above | first, axis=0)
  worst = ~jnp.any(above.T | first, axis=0)
  return above & best[:, None] & worst


@dataclasses.dataclass(frozen=True)
class Preference(surrogates.Surrogate):
  """DPO: −log σ(β (D_w − D_l)), a mean over the pairs of the mini-batch."""

  pairs: str = parts.key(
      "all",
      "preference pairs of a group: all with unequal rewards, or best_worst"
      " (the highest against the lowest; of equal ones the first record)",
      choices=("all", "best_worst"),
  )
  dpo_beta: float = parts.key(
      0.1, "β of the preference loss, per nat of log π − log reference",
      above=0.0,
  )
  label_smoothing: float = parts.key(
      0.0, "share of preference pairs taken to be the wrong way round",
      at_least=0.0, at_most=0.5,
  )

  formula = (
      "ℓ_it = Σ_l loss of the pair (i, l) / (P n_i), ∇ℓ_it = ∂L/∂D_i ∇log π_it"
  )
  detached = "∂L/∂D_i, from the whole mini-batch"
  pairwise = True

  def describe(self) -> str:
    flipped = self.label_smoothing
    loss = "−log σ(z)"
    if flipped:
      loss = f"−(1 − {flipped:g}) log σ(z) − {flipped:g} log σ(−z)"
    pairs = {
        "all": "all (w, l) of a group with R_w > R_l",
        "best_worst": "(w, l) = the highest and the lowest R of a group",
    }[self.pairs]
    return (
        f"L = (1/P) Σ_(w,l) {loss}, z = {self.dpo_beta:g} (D_w − D_l), D_i = "
        f"Σ_t log r_t of response i; P pairs of the mini-batch: {pairs}; label "
        f"smoothing {flipped:g}"
    )

  def statistics(self, tokens: tokens_lib.Tokens) -> dict[str, Array]:
    """D_i in nats and the response tokens of each sequence, [N]."""
    mask, terms = tokens.layout.mask, tokens.terms
    size = terms.sequence_scores.shape[0]
    ids = masked.fill(terms.sequence_ids, mask)
    add = lambda x: jnp.zeros(size, x.dtype).at[ids].add(masked.fill(x, mask))
    gaps = tokens.logprobs - tokens.anchor_logprobs
    return {"log_ratios": add(gaps), "tokens": add(jnp.ones_like(gaps))}

  def losses(
      self, tokens: tokens_lib.Tokens, statistics: Mapping[str, Array]
  ) -> tuple[Array, dict[str, Any]]:
    """Returns (losses [B, T], metrics) of a micro-batch.

    Args:
      tokens: of the micro-batch.
      statistics: `statistics` of the whole mini-batch.
    """
    terms, where = tokens.terms, tokens.layout
    groups = jnp.where(statistics["tokens"] > 0, terms.sequence_groups, -1)
    over = prefers(terms.sequence_scores, groups, self.pairs == "best_worst")
    sums = statistics["log_ratios"]
    margins = self.dpo_beta * jnp.where(over, sums[:, None] - sums, 0.0)
    values, slopes = self._of_pairs(margins)
    values, slopes = masked.fill(values, over), masked.fill(slopes, over)
    total = jnp.maximum(jnp.sum(over, dtype=sums.dtype), 1.0)
    pulls = (jnp.sum(slopes, axis=1) - jnp.sum(slopes, axis=0)) / total
    ids = masked.fill(terms.sequence_ids, where.mask)
    lengths = jnp.maximum(where.lengths, 1.0)
    losses = (jnp.sum(values, axis=1) / total)[ids] / lengths
    losses += pulls[ids] * (tokens.logprobs - tokens.detached_logprobs)
    first = where.mask & (where.positions == 1)
    metrics = _of_chosen(margins, over, lambda x: jnp.sum(x[ids], where=first))
    return losses, metrics

  def _of_pairs(self, margins: Array) -> tuple[Array, Array]:
    """The loss of each pair, and its slope by D_w; minus that by D_l."""
    flipped = self.label_smoothing
    values = (1.0 - flipped) * jax.nn.softplus(-margins)
    values += flipped * jax.nn.softplus(margins)
    slopes = flipped - jax.nn.sigmoid(-margins)
    return values, self.dpo_beta * slopes


def _of_chosen(margins: Array, over: Array, add: Any) -> dict[str, Any]:
  """Metrics of the pairs whose chosen response is in the micro-batch.

  Args:
    margins: float [N, N], β (D_w − D_l) in nats, 0 where there is no pair.
    over: bool [N, N], the pairs.
    add: sums [N] over the sequences of the micro-batch.
  """
  pairs = add(jnp.sum(over, axis=1, dtype=jnp.float32))
  right = over & (margins > 0)
  accurate = add(jnp.sum(right, axis=1, dtype=jnp.float32))
  margin = add(jnp.sum(margins, axis=1, dtype=jnp.float32))
  return {
      "pairs": types.Sum(pairs),
      "pair_margin": types.Mean(margin, pairs),
      "pair_accuracy": types.Mean(accurate, pairs),
  }


SURROGATES = {"preference": Preference}
