"""Truncated supports: what a sampler may have cut the vocabulary to."""

import numpy as np

# Numbers that are tried.
_TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995)
_MIN_P = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


def candidates(count: int) -> list[tuple[str, float]]:
  """Lists the supports worth trying, (kind, number).

  Args:
    count: most likely ids whose log-probs are known.
  """
  return [
      *(("top_k", number) for number in range(1, count + 1)),
      *(("top_p", number) for number in _TOP_P),
      *(("min_p", number) for number in _MIN_P),
  ]


def log_kept(top: np.ndarray, kind: str, number: float) -> np.ndarray:
  """Log of the mass that a truncated support keeps, float64 [M], nats.

  Args:
    top: float [M, N], log-probs of the most likely ids, falling; nats. A
      support that reaches beyond them keeps `number` for top_p, and what these
      ids have for min_p.
    kind: top_k, top_p or min_p.
    number: of it; at most N for top_k.
  """
  chances = np.exp(top.astype(np.float64))
  masses = np.cumsum(chances, axis=1)
  if kind == "top_k":
    kept = masses[:, int(number) - 1]
  elif kind == "top_p":
    first = np.argmax(masses >= number, axis=1)
    reached = masses[np.arange(len(masses)), first]
    kept = np.where(masses[:, -1] >= number, reached, number)
  else:
    kept = np.sum(chances, axis=1, where=chances >= number * chances[:, :1])
  return np.log(np.minimum(kept, 1.0))
