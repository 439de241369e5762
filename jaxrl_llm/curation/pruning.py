"""Steps that leave completions, or the ends of completions, out of an update.

What is pruned is decided after the rollout and saves no decoding. Which
prompts are posed is the generator's choice: allocation.name=dppo_pruning.
"""

import dataclasses
import math

import numpy as np

from jaxrl_llm.curation import episodes as episodes_lib
from jaxrl_llm.losses import parts

SCOPES = ("question", "batch")
_SCOPE = dict(
    doc="completions that are compared: those of a question, or of the rollout"
    " batch",
    choices=SCOPES,
)


def _compared(
    episodes: episodes_lib.Episodes, scope: str
) -> list[np.ndarray]:
  """Returns the places of the episodes that are compared with each other."""
  if scope == "question":
    return episodes.groups()
  return [np.arange(len(episodes))]


def survivors(count: int, share: float) -> int:
  """k = ⌊count (1 − share)⌋, at least 1.

  8 (1 − 0.95) is 0.4000…004 and 10 (1 − 0.9) is 0.99…98 in floating point; the
  latter must give 1 and no less, so a little is added before rounding down.
  """
  return max(1, math.floor(count * (1.0 - share) + 1e-9))


@dataclasses.dataclass(frozen=True)
class CompletionTopK(episodes_lib.Step):
  """Keeps the completions with the largest |A| (CPPO, arXiv 2503.22342).

  k of a question's (Eq 8-10, the sums divided by k), or, with a threshold,
  those with |A| at least that (Eq 7, divided by the original count). Biased by
  design. Ties go to the lower place.
  """

  prune_share: float = parts.key(
      0.5, "share of completions that is dropped", at_least=0.0, at_most=1.0
  )
  prune_threshold: float | None = parts.key(
      None, "keep |A| ≥ this instead of a share", at_least=0.0
  )
  prune_scope: str = parts.key("question", **_SCOPE)

  words = "keeps the completions whose advantage is largest, of either sign"

  @property
  def denominator(self) -> str:
    unset = self.prune_threshold is None
    return episodes_lib.SURVIVORS if unset else episodes_lib.ORIGINAL

  def idle_keys(self) -> frozenset[str]:
    unset = self.prune_threshold is None
    return frozenset() if unset else frozenset(["prune_share", "prune_scope"])

  def __call__(self, episodes: episodes_lib.Episodes) -> list[np.ndarray]:
    sizes = episodes.sizes()
    if self.prune_threshold is not None:
      return episodes.spread(sizes >= self.prune_threshold)
    kept = np.zeros(len(episodes))
    for places in _compared(episodes, self.prune_scope):
      order = np.argsort(-sizes[places], kind="stable")
      kept[places[order[: survivors(len(places), self.prune_share)]]] = 1.0
    return episodes.spread(kept)


@dataclasses.dataclass(frozen=True)
class RandomPruning(episodes_lib.Step):
  """Drops completions with a small |A| at random, without bias.

  A completion below the threshold is dropped with probability r and weighs
  1 / (1 − r) where it stays (Horvitz-Thompson), so that the expected sum is
  that of all. A reconstruction of the completion level of DPPO (arXiv
  2603.04135), whose rule is not published in full; its prompt level is
  allocation.name=dppo_pruning.
  """

  prune_probability: float = parts.key(
      0.5,
      "r, with which a completion below the threshold is dropped",
      at_least=0.0,
      at_most=0.99,
  )
  prune_threshold: float | None = parts.key(
      None, "|A| below which that happens; unset: the mean |A|", at_least=0.0
  )
  prune_scope: str = parts.key("question", **_SCOPE)

  words = (
      "drops completions of small advantage at random, weighs those that stay"
      " by 1 / P(they stay)"
  )
  denominator = episodes_lib.ORIGINAL
  unbiased = True

  def idle_keys(self) -> frozenset[str]:
    unset = self.prune_threshold is None
    return frozenset() if unset else frozenset(["prune_scope"])

  def keep_probabilities(
      self, episodes: episodes_lib.Episodes
  ) -> np.ndarray:
    """float64 [N]: 1 − r below the threshold, else 1."""
    sizes = episodes.sizes()
    thresholds = np.zeros(len(episodes))
    for places in _compared(episodes, self.prune_scope):
      thresholds[places] = sizes[places].mean()
    if self.prune_threshold is not None:
      thresholds[:] = self.prune_threshold
    return np.where(sizes < thresholds, 1.0 - self.prune_probability, 1.0)

  def __call__(self, episodes: episodes_lib.Episodes) -> list[np.ndarray]:
    chances = self.keep_probabilities(episodes)
    kept = episodes.uniforms() < chances
    return episodes.spread(np.where(kept, 1.0 / chances, 0.0))


@dataclasses.dataclass(frozen=True)
class PrefixSampling(episodes_lib.Step):
  """Computes a random prefix of each response, without bias.

  A cutoff τ is drawn from p, and the token t ≤ τ weighs 1 / S(t) with the
  survival S(t) = P(τ ≥ t); tokens beyond τ are cut off. The expectation is
  the whole sum as S(T) = p(T) > 0. A reconstruction of PS-PPO (arXiv
  2606.29758), whose distribution is not published: here τ = T with
  `full_probability`, else it is uniform over the shorter prefixes.
  """

  full_probability: float = parts.key(
      0.4,
      "p(T), with which a response stays whole; the largest weight is its"
      " inverse",
      above=0.0,
      at_most=1.0,
  )
  min_prefix: float = parts.key(
      0.0,
      "shortest prefix as a share of the response's tokens",
      at_least=0.0,
      at_most=1.0,
  )

  words = "cuts each response at random, weighs a token by 1 / P(it stays)"
  denominator = episodes_lib.ORIGINAL
  truncates = True
  unbiased = True

  def cutoffs(self, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cutoffs of a response and their probabilities.

    Args:
      length: T, trained tokens of the response.

    Returns:
      int64 [C] ascending, the last one T, and float64 [C] with sum 1.
    """
    first = max(1, math.ceil(self.min_prefix * length))
    shorter = np.arange(first, length)
    if not shorter.size:
      return np.array([length]), np.ones(1)
    share = (1.0 - self.full_probability) / shorter.size
    chances = np.append(np.full(shorter.size, share), self.full_probability)
    return np.append(shorter, length), chances

  def token_weights(self, cutoff: int, length: int) -> np.ndarray:
    """float64 [T]: 1 / S(t) up to the cutoff, 0 beyond."""
    values, chances = self.cutoffs(length)
    ranks = np.arange(1, length + 1)
    survival = np.array([chances[values >= rank].sum() for rank in ranks])
    return np.where(ranks <= cutoff, 1.0 / survival, 0.0)

  def __call__(self, episodes: episodes_lib.Episodes) -> list[np.ndarray]:
    weights = []
    for mask, draw in zip(episodes.masks, episodes.uniforms()):
      values, chances = self.cutoffs(int(mask.sum()))
      place = np.searchsorted(np.cumsum(chances), draw, side="right")
      cutoff = values[min(place, len(values) - 1)]
      row = np.zeros(mask.shape)
      row[mask] = self.token_weights(int(cutoff), int(mask.sum()))
      weights.append(row)
    return weights
