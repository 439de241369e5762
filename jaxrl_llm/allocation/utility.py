"""CERO's utility of exposure, its Fenchel conjugate, and the best in hindsight.

  U(q, z) = 1 − exp(−c z),  c = 4 λ q / R      (2606.05606, section 2.2)

q ∈ [0, ¼] is a prompt's informativeness E[P(1 − P)], z its exposure in units,
R the equal-share exposure in units, Z the largest exposure in units.
"""

import numpy as np


def informativeness(correct: np.ndarray, wrong: np.ndarray) -> np.ndarray:
  """Returns E[P(1 − P)] under Beta(correct, wrong): eq. 6.

  It is the predictive mean of the unbiased variance of rewards within a group
  of any size.
  """
  total = correct + wrong
  return correct * wrong / (total * (total + 1))


def utility(rates: np.ndarray, exposure: np.ndarray) -> np.ndarray:
  """Returns U = 1 − exp(−c z), of c `rates` per unit and z `exposure`."""
  return -np.expm1(-rates * exposure)


def best_exposure(
    prices: np.ndarray, rates: np.ndarray, most: float
) -> np.ndarray:
  """Returns ẑ* = argmin over 0 ≤ z ≤ Z of θ z − U(z): eq. 9.

  Args:
    prices: θ ≥ 0, utility per unit.
    rates: c ≥ 0, per unit.
    most: Z.
  """
  prices, rates = np.broadcast_arrays(
      np.asarray(prices, float), np.asarray(rates, float)
  )
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    inner = np.log(rates / prices) / rates
  # A price below the slope at Z buys all, one above the slope at 0 nothing.
  result = np.where(prices <= rates * np.exp(-rates * most), most, inner)
  return np.where((rates == 0) | (prices >= rates), 0.0, result)


def conjugate(
    prices: np.ndarray, rates: np.ndarray, most: float
) -> np.ndarray:
  """Returns U*(θ) = θ ẑ* − U(ẑ*): eq. 14; arguments as `best_exposure`."""
  chosen = best_exposure(prices, rates, most)
  return prices * chosen - utility(np.asarray(rates, float), chosen)


def best_in_hindsight(
    rates: np.ndarray, total: int, most: int
) -> np.ndarray:
  """Returns the exposures in whole units that maximise Σ U (App. C.2).

  The marginal gains of one prompt fall, so the `total` largest of all are the
  best; equal ones go to the lower index, and within a prompt to the earlier.

  Args:
    rates: c, float [M].
    total: B, units.
    most: Z, units for one prompt.

  Returns:
    int [M].
  """
  gains = np.multiply.outer(-np.expm1(-rates), np.ones(most)) * np.exp(
      -np.multiply.outer(rates, np.arange(most))
  )
  gains = np.where(gains > 0, gains, -1.0).ravel()
  best = np.argsort(-gains, kind="stable")[:total]
  best = best[gains[best] > 0]
  return np.bincount(best // most, minlength=len(rates))
