"""How well trainer and sampler agree before the first update, by position.

With unchanged weights every log-ratio log π − log μ would be 0. What it is
instead tells what differs between the two; see `Report.cause`.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from jaxrl_llm import plurals
from jaxrl_llm.training import recorded as recorded_lib

# Largest |log-ratio| in nats between two float32 computations.
FLOAT32_TOLERANCE = 1e-4
# Largest mean |log-ratio| that rounding to bfloat16 explains.
BFLOAT16_TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Bin:
  """Response positions in [first, last]: log-ratios in nats."""

  first: int
  last: int
  count: int
  mean: float
  mean_abs: float
  largest: float


@dataclasses.dataclass(frozen=True)
class Report:
  """Log-ratios log π − log μ of trained tokens, and what they point to.

  Attributes:
    bins: by position, each twice as wide as the one before.
    records: whose tokens these are.
    count: tokens.
    mean: of the log-ratio.
    mean_abs: of its absolute value.
    largest: absolute value.
    mean_ratio: of exp(log-ratio).
    cause: one line.
  """

  bins: tuple[Bin, ...]
  records: int
  count: int
  mean: float
  mean_abs: float
  largest: float
  mean_ratio: float
  cause: str

  def numbers(self) -> dict[str, float]:
    """Returns the figures for the metrics file."""
    return {
        "step0/log_ratio_mean": self.mean,
        "step0/log_ratio_mean_abs": self.mean_abs,
        "step0/log_ratio_max_abs": self.largest,
        "step0/ratio_mean": self.mean_ratio,
    }

  def lines(self) -> list[str]:
    """Returns the report as text."""
    lines = [
        f"step-0 ratio report: {self.count} tokens of"
        f" {plurals.count(self.records, 'record')}, log-ratio mean"
        f" {self.mean:+.2e}, mean |.| {self.mean_abs:.2e}, max |.|"
        f" {self.largest:.2e}, mean ratio {self.mean_ratio:.6f}",
        "  positions      tokens        mean    mean |.|     max |.|",
    ]
    for part in self.bins:
      place = f"{part.first}-{part.last}"
      lines.append(
          f"  {place:<12}{part.count:>9}{part.mean:>+12.2e}"
          f"{part.mean_abs:>12.2e}{part.largest:>12.2e}"
      )
    return lines + [f"  {self.cause}"]


def report(
    recorded: recorded_lib.Recorded,
    logprobs: Sequence[np.ndarray],
    *,
    stale: bool,
    compute_dtype: str,
) -> Report:
  """Compares the trainer's log-probs with those recorded while sampling.

  Args:
    recorded: of N records.
    logprobs: float [R] each, nats, by the trainer before the first update.
    stale: whether other weights drew some of the tokens.
    compute_dtype: of the trainer.
  """
  gaps, positions = [], []
  for mask, behavior, scored in zip(
      recorded.trained_masks, recorded.logprobs, logprobs, strict=True
  ):
    gaps.append((scored - behavior)[mask])
    positions.append(np.flatnonzero(mask))
  gap = np.concatenate(gaps).astype(np.float64)
  position = np.concatenate(positions)
  octave = np.floor(np.log2(position + 1)).astype(int)
  bins = tuple(
      _bin(number, gap[octave == number]) for number in np.unique(octave)
  )
  mean_abs = float(np.abs(gap).mean())
  largest = float(np.abs(gap).max())
  if not stale and largest <= FLOAT32_TOLERANCE:
    cause = "trainer and sampler agree to float32 rounding."
  else:
    cause = "likely cause: " + _cause(
        bins, float(gap.mean()), mean_abs, stale, compute_dtype
    )
  return Report(
      bins=bins,
      records=sum(bool(mask.any()) for mask in recorded.trained_masks),
      count=len(gap),
      mean=float(gap.mean()),
      mean_abs=mean_abs,
      largest=largest,
      mean_ratio=float(np.exp(np.minimum(gap, 20.0)).mean()),
      cause=cause,
  )


def _bin(number: int, gap: np.ndarray) -> Bin:
  first = 2**number - 1
  return Bin(
      first=first,
      last=2 * first,
      count=len(gap),
      mean=float(gap.mean()),
      mean_abs=float(np.abs(gap).mean()),
      largest=float(np.abs(gap).max()),
  )


def _cause(
    bins: tuple[Bin, ...],
    mean: float,
    mean_abs: float,
    stale: bool,
    compute_dtype: str,
) -> str:
  """Names what the pattern of the gaps points to."""
  if stale:
    return "the shards were drawn by other weights (staleness)."
  if compute_dtype == "bfloat16" and mean_abs <= BFLOAT16_TOLERANCE:
    return "rounding to bfloat16 differs between decoding and training."
  first, rest = bins[0], bins[1:]
  if rest and first.mean_abs > 5 * max(part.mean_abs for part in rest):
    return "the seam of prompt and response (template, BOS, shift by one)."
  if len(bins) > 2 and bins[-1].mean_abs > 5 * bins[0].mean_abs:
    return "it grows with position: KV cache, positions or rotary settings."
  if abs(mean) > 0.5 * mean_abs:
    return "it has one sign: temperature, or mass lost by truncated sampling."
  return "the model differs: weights, precision or attention mask."
