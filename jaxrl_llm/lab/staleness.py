"""What training at a lag came to: cells, their means and spread over seeds.

A cell is one objective, one lag and one seed. Seeds repeat the whole
experiment, so the spread between them is the noise of it.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import statistics
from typing import Any

import jax

# Numbers of an update, and what metrics.jsonl calls them.
NUMBERS = {
    "kl": "kl/behavior_k3",
    "tv": "tv/behavior",
    "ess": "ess/ess",
    "clip": "clip",
    "clip/high_positive": "clip/high_positive",
    "clip/high_negative": "clip/high_negative",
    "clip/low_positive": "clip/low_positive",
    "clip/low_negative": "clip/low_negative",
    "ratio/max": "log_ratio_max/behavior",
    "grad_norm": "grad_norm",
}
_LOW, _HIGH = "log_ratio/behavior/q01", "log_ratio/behavior/q99"
# What curves and tables show of a cell: name, title, digits.
SHOWN = (
    ("reward", "held-out reward", 4),
    ("gain", "gain over the start policy", 4),
    ("mean/spread", "log live/behavior, q99 − q01 (bins end at ±2)", 3),
    ("mean/ratio/max", "largest |log live/behavior|", 2),
    ("mean/kl", "KL (k3) to the behavior policy", 4),
    ("mean/tv", "total variation to the behavior policy", 4),
    ("mean/ess", "effective sample size, share", 3),
    ("mean/clip", "tokens without a gradient, share", 3),
)
# Chance of telling apart what is alike, over all comparisons of a lag.
LEVEL = 0.05


@dataclasses.dataclass(frozen=True)
class Ranked:
  """An objective in the order of a lag.

  Attributes:
    label: of the objective.
    mean: held-out reward over the seeds.
    gap: mean of its difference to the first one, seed by seed.
    p: two-sided p-value of that difference (paired t-test), times the number
      of comparisons; NaN of the first one.
  """

  label: str
  mean: float
  gap: float
  p: float

  @property
  def apart(self) -> bool:
    """Whether the seeds tell it from the first one."""
    return self.p < LEVEL


def check(lags: Sequence[int], seeds: Sequence[int]) -> None:
  """Refuses lags and seeds that mean nothing.

  Raises:
    ValueError: naming the key.
  """
  whole = all(isinstance(lag, int) for lag in lags)
  if (
      not lags
      or not whole
      or lags[0] < 0
      or any(a >= b for a, b in zip(lags, lags[1:]))
  ):
    raise ValueError(
        "lab.lags: expected numbers of rounds from 0 on, ascending, found"
        f" {tuple(lags)}; correct them."
    )
  whole = all(
      isinstance(seed, int) and -(2**63) <= seed < 2**63 for seed in seeds
  )
  if not seeds or not whole or len(set(seeds)) < len(seeds):
    raise ValueError(
        "lab.seeds: expected one or more different integers of 64 bits, found"
        f" {tuple(seeds)}; correct them."
    )


def numbers(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Numbers of a cell from the records of its metrics.jsonl.

  Returns:
    `updates`, and where there is one: `first/NAME` and `last/NAME` of those
    updates and `mean/NAME` over all, by the names of NUMBERS and `spread`; and
    `positions`, the last record of diagnostics by position, or None.
  """
  updates = [record for record in records if record["kind"] == "update"]
  by_position = [record for record in records if record["kind"] == "positions"]
  found: dict[str, Any] = {
      "updates": len(updates),
      "positions": by_position[-1] if by_position else None,
  }
  rows = [_of_update(update) for update in updates]
  for name in rows[0] if rows else ():
    values = [row[name] for row in rows if row[name] is not None]
    found[f"first/{name}"] = rows[0][name]
    found[f"last/{name}"] = rows[-1][name]
    found[f"mean/{name}"] = statistics.mean(values) if values else None
  return found


def _of_update(update: Mapping[str, Any]) -> dict[str, float | None]:
  row = {name: update.get(key) for name, key in NUMBERS.items()}
  low, high = update.get(_LOW), update.get(_HIGH)
  row["spread"] = None if low is None or high is None else high - low
  return row


def values(
    cells: Sequence[Mapping[str, Any]], label: str, lag: int, name: str
) -> dict[int, float]:
  """Returns a number of the cells of an objective and a lag, by seed."""
  return {
      cell["seed"]: cell[name]
      for cell in cells
      if cell["label"] == label
      and cell["lag"] == lag
      and cell.get(name) is not None
  }


def summary(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Means, standard deviations (ddof 1) and ranges over the seeds.

  Returns:
    An object per objective and lag, in the order of the cells: label, lag,
    seeds, and for each of SHOWN `mean`, `std` (None of one seed), `low` and
    `high`, or None where no seed has the number.
  """
  pairs = dict.fromkeys((cell["label"], cell["lag"]) for cell in cells)
  found = []
  for label, lag in pairs:
    row: dict[str, Any] = {"label": label, "lag": lag}
    row["seeds"] = len(values(cells, label, lag, "reward"))
    for name, _, _ in SHOWN:
      row[name] = _spread(list(values(cells, label, lag, name).values()))
    found.append(row)
  return found


def _spread(numbers_: Sequence[float]) -> dict[str, float | None] | None:
  if not numbers_:
    return None
  several = len(numbers_) > 1
  return {
      "mean": statistics.mean(numbers_),
      "std": statistics.stdev(numbers_) if several else None,
      "low": min(numbers_),
      "high": max(numbers_),
  }


def ranking(
    cells: Sequence[Mapping[str, Any]], lag: int
) -> list[Ranked] | None:
  """Orders the objectives of a lag by held-out reward, best first.

  Returns:
    None where that would be an order of noise: fewer than two seeds, or fewer
    than two objectives.
  """
  labels = dict.fromkeys(cell["label"] for cell in cells)
  rewards = {label: values(cells, label, lag, "reward") for label in labels}
  seeds = set.intersection(*map(set, rewards.values())) if rewards else set()
  if len(seeds) < 2 or len(rewards) < 2:
    return None
  means = {
      label: statistics.mean(found[seed] for seed in seeds)
      for label, found in rewards.items()
  }
  order = sorted(means, key=lambda label: -means[label])
  first = rewards[order[0]]
  ranked = [Ranked(order[0], means[order[0]], 0.0, math.nan)]
  for label in order[1:]:
    gaps = [rewards[label][seed] - first[seed] for seed in sorted(seeds)]
    p = min(1.0, paired_p(gaps) * (len(order) - 1))
    ranked.append(Ranked(label, means[label], statistics.mean(gaps), p))
  return ranked


def paired_p(gaps: Sequence[float]) -> float:
  """Two-sided p-value of Student's t that the mean of differences is 0.

  P(|T| > t) = I_x(ν/2, ½) with x = ν / (ν + t²) and ν = n − 1; 1 where all
  differences are 0.
  """
  freedom = len(gaps) - 1
  mean, std = statistics.mean(gaps), statistics.stdev(gaps)
  if std == 0:
    return 1.0 if mean == 0 else 0.0
  square = mean**2 * len(gaps) / std**2
  x = freedom / (freedom + square)
  return float(jax.scipy.special.betainc(freedom / 2, 0.5, x))
