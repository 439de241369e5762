"""Curves by response position: what the sums of losses/positions.py become."""

from typing import Any

import numpy as np

from jaxrl_llm.losses import positions

# Curves that are a sum divided by the tokens of the bucket.
_MEANS = {
    "log_ratio": "log_ratio/mean",
    "cumulative": "cumulative/mean",
    "tv": "tv",
    "clip": "clip",
    "clip_high": "clip_high",
    "clip_low": "clip_low",
    "budget": "budget",
}
_QUANTILES = (5, 25, 50, 75, 95)


def finish(metric: positions.Positions) -> dict[str, Any]:
  """Returns lists over the n buckets; None where there is no token.

  With ℓ_t = log π_t − log anchor_t within ±20 nats and c_t = Σ_{s≤t} ℓ_s
  over the trained tokens of the response (a record that a window began
  starts at the window):

  - `edges`: n + 1 ints, bucket i is [edges[i], edges[i+1]).
  - `anchor`: proximal, behavior or reference.
  - `tokens`: trained tokens, rejected ones left out.
  - `log_ratio/mean`, `log_ratio/q05` … `q95`: of ℓ_t, nats.
  - `cumulative/mean`, `cumulative/q05` … `q95`: of c_t, nats.
  - `ess`: (Σw)² / (count Σw²) of w = exp(min(c_t, 20)), in [0, 1].
  - `tv`: mean of the total variation of anchor and π, over what the trust
    region compares: top-K and rest, else the sampled token and the rest.
  - `clip`, `clip_high`, `clip_low`: share of tokens that are cut; of them
    those whose ratio is above, or below 1.
  - `bound_low`, `bound_high`: mean bound on the log of the objective's
    ratio, nats; over tokens that have one, where the region has such.
  - `budget`: mean share of the prefix budget in use, where there is one.
  - `contribution`: Σ_t |a_t f_t A_t| of the bucket over that of all, with
    a_t the weight of the token in the policy loss and f_t of `positions.Seen`:
    the share of the bucket in the coefficients of ∇log π_t.
  - `behavior/…`: ℓ, c and ess of log π_t − log behavior_t, where the anchor
    is another policy.
  """
  sums = {k: np.asarray(v, np.float64) for k, v in metric.sums.items()}
  tokens = sums["tokens"]
  edges = positions.edges(tokens.size)
  found = {"tokens": np.where(tokens > 0, tokens, np.nan)}
  with np.errstate(divide="ignore", invalid="ignore"):
    for prefix in ("", positions.BEHAVIOR):
      for name, curve in _MEANS.items():
        if prefix + name in sums:
          found[prefix + curve] = sums[prefix + name] / tokens
      if prefix + "weight" in sums:
        square = sums[prefix + "square"]
        total = sums[prefix + "weight"]
        found[prefix + "ess"] = np.square(total) / square / tokens
    for name in positions.BOUNDS:
      if name in sums:
        found[name] = sums[name] / sums[f"{name}/tokens"]
    if "contribution" in sums:
      shares = sums["contribution"] / np.sum(sums["contribution"])
      found["contribution"] = np.where(tokens > 0, shares, np.nan)
  for name, counts in metric.histograms.items():
    for q, values in zip(_QUANTILES, _quantiles(counts)):
      found[f"{name}/q{q:02d}"] = values
  lists = {name: [_number(x) for x in row] for name, row in found.items()}
  return {"edges": list(edges), "anchor": metric.anchor, **lists}


def _quantiles(counts: np.ndarray) -> list[np.ndarray]:
  """Each of _QUANTILES by bucket: the bin of that order statistic, nats."""
  counts = np.asarray(counts, np.float64)
  totals = counts.sum(axis=1)
  running = np.cumsum(counts, axis=1)
  steps = np.arange(positions.BINS) - positions.HALF
  sizes = positions.SCALE * np.expm1(np.abs(steps) * positions.WIDTH)
  centres = np.sign(steps) * sizes
  found = []
  for q in _QUANTILES:
    bins = np.sum(running < totals[:, None] * q / 100, axis=1)
    values = centres[np.minimum(bins, positions.BINS - 1)]
    found.append(np.where(totals > 0, values, np.nan))
  return found


def _number(value: float) -> float | int | None:
  """Six digits are what a float32 sum knows; None is no number."""
  if not np.isfinite(value):
    return None
  return int(value) if value == int(value) else float(f"{value:.6g}")
