"""Scores of one problem from K samples, and intervals over problems.

A sample whose verifier failed has the score NaN: it is left out, and a problem
without any verdict is left out of the mean. Both are counted by the caller.
Samples of one problem are not independent trials, so intervals of means
resample problems. Values that are all 0 or 1, one per problem, are a
proportion of independent trials and get Wilson's interval.
"""

from collections.abc import Sequence
import dataclasses
import math
import statistics

import numpy as np

RESAMPLES = 10_000
_RESAMPLES_AT_ONCE = 500


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean over problems with its confidence interval.

  Attributes:
    value: the mean; NaN when no problem has a value.
    low: lower end of the interval.
    high: upper end.
    count: problems with a value.
    method: wilson, bootstrap, exact (all values equal), or none when there is
      no value.
  """

  value: float
  low: float
  high: float
  count: int
  method: str


def exact_match(scores: Sequence[float]) -> float:
  """Returns the share of correct samples among those with a verdict."""
  known = _known(scores)
  return float(known.mean()) if known.size else math.nan


def any_correct(scores: Sequence[float]) -> float:
  """Returns 1 where some sample is correct (PK); not the unbiased pass@K."""
  known = _known(scores)
  return float(known.max()) if known.size else math.nan


def majority_vote(
    answers: Sequence[str | None], scores: Sequence[float]
) -> float:
  """Returns the score of the most frequent answer.

  No answer (None) is an answer like others and wrong; of equally frequent
  answers the first seen wins.

  Args:
    answers: one key per sample; equal keys are the same answer.
    scores: 1 correct, 0 wrong, NaN without verdict.

  Returns:
    The score of the first sample with that answer that has a verdict.
  """
  counts: dict[str | None, int] = {}
  for answer in answers:
    counts[answer] = counts.get(answer, 0) + 1
  if not counts:
    return math.nan
  winner = max(counts, key=counts.get)
  known = _known([
      score
      for answer, score in zip(answers, scores, strict=True)
      if answer == winner
  ])
  if winner is None:
    return 0.0
  return float(known[0]) if known.size else math.nan


def pass_at_k(samples: int, correct: int, k: int) -> float:
  """Estimates without bias that one of k samples is correct.

  1 − C(n − c, k) / C(n, k); NaN when there are fewer than k samples.
  """
  if samples < k:
    return math.nan
  return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def wilson(
    successes: float, trials: int, confidence: float
) -> tuple[float, float]:
  """Returns Wilson's score interval of a proportion of independent trials."""
  z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
  share = successes / trials
  centre = share + z * z / (2 * trials)
  spread = z * math.sqrt(
      share * (1 - share) / trials + z * z / (4 * trials * trials)
  )
  scale = 1 + z * z / trials
  low, high = (centre - spread) / scale, (centre + spread) / scale
  return max(0.0, low), min(1.0, high)


def bootstrap(
    values: np.ndarray, confidence: float, seed: int = 0
) -> tuple[float, float]:
  """Returns the percentile interval of the mean, resampling the values.

  Args:
    values: float [n], one per problem (or per pair of problems).
    confidence: level in (0, 1).
    seed: of the resampling; equal seeds give equal intervals.
  """
  generator = np.random.default_rng(seed)
  shape = (_RESAMPLES_AT_ONCE, values.size)
  means = np.concatenate([
      values[generator.integers(values.size, size=shape)].mean(axis=1)
      for _ in range(RESAMPLES // _RESAMPLES_AT_ONCE)
  ])
  tail = (1 - confidence) / 2
  low, high = np.quantile(means, [tail, 1 - tail])
  return float(low), float(high)


def estimate(values: Sequence[float], confidence: float) -> Estimate:
  """Returns the mean over problems and its interval; NaN is left out."""
  known = _known(values)
  if not known.size:
    return Estimate(math.nan, math.nan, math.nan, 0, "none")
  mean = float(known.mean())
  if np.all((known == 0) | (known == 1)):
    low, high = wilson(float(known.sum()), known.size, confidence)
    return Estimate(mean, low, high, known.size, "wilson")
  return _resampled(known, 0.0, confidence)


def paired_gain(
    before: Sequence[float], after: Sequence[float], confidence: float
) -> Estimate:
  """Returns the mean gain over the same problems, resampling the pairs.

  Pairs without a value on either side are left out.
  """
  gains = _known(np.asarray(after, np.float64) - np.asarray(before, np.float64))
  if not gains.size:
    return Estimate(math.nan, math.nan, math.nan, 0, "none")
  return _resampled(gains, -1.0, confidence)


def _resampled(
    values: np.ndarray, least: float, confidence: float
) -> Estimate:
  """Estimates a mean of values in [least, 1].

  Resampling equal values gives no width. Of n problems that all agree, the
  share of others is below 1 − (1 − confidence)^(1/n) (Clopper and Pearson),
  and they may lie anywhere in the range.
  """
  mean = float(values.mean())
  if np.ptp(values):
    low, high = bootstrap(values, confidence)
    return Estimate(mean, low, high, values.size, "bootstrap")
  others = 1 - (1 - confidence) ** (1 / values.size)
  low, high = mean - others * (mean - least), mean + others * (1 - mean)
  return Estimate(mean, low, high, values.size, "exact")


def _known(values: Sequence[float]) -> np.ndarray:
  array = np.asarray(values, np.float64)
  return array[~np.isnan(array)]
