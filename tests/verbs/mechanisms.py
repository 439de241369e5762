"""How the metrics of a run show what an objective did, one word each."""

from collections.abc import Mapping, Sequence
import math

Updates = Sequence[Mapping[str, float]]
# Between the deviations of a round's second update and of its last.
STOP = 0.35


def uncut(updates: Updates) -> bool:
  """No token loses its gradient."""
  return all(u["clip"] == 0 for u in updates)


def preferred(updates: Updates) -> bool:
  """No margin where the policy is the reference; it grows with each epoch."""
  margins = [u["pair_margin"] for u in updates]
  epochs = [margins[n] + margins[n + 1] for n in range(0, 8, 2)]
  right = [u["pair_accuracy"] for u in (*updates[2:4], *updates[6:])]
  return (
      abs(margins[0]) < 1e-5
      and abs(updates[0]["loss"] - math.log(2)) < 1e-5
      and epochs[1] > epochs[0] + 0.1
      and epochs[3] > epochs[2] + 0.1
      and sum(right) > 0.8 * len(right)
      and all(u["pairs"] > 0 for u in updates)
  )


def imitated(updates: Updates) -> bool:
  """The NLL of what is imitated falls from an epoch to the next."""
  losses = [u["loss"] for u in updates]
  epochs = [losses[n] + losses[n + 1] for n in range(0, 8, 2)]
  falls = epochs[1] < 0.95 * epochs[0] and epochs[3] < 0.95 * epochs[2]
  return uncut(updates) and falls


def cut(updates: Updates) -> bool:
  """Nothing at the first update, where every ratio is 1; some tokens later."""
  return updates[0]["clip"] == 0 and any(u["clip"] > 0 for u in updates)


def cut_at_any_ratio(updates: Updates) -> bool:
  """Where |A| alone exceeds α, the first update cuts as well."""
  return any(0 < u["clip"] < 1 for u in updates)


def cut_above_128(updates: Updates) -> bool:
  return cut(updates) and any(u["clip/high_positive"] > 0 for u in updates)


def cut_and_kept_near_the_start(updates: Updates) -> bool:
  """The KL to the start policy is 0 before the first update."""
  costs = [u["loss/kl"] for u in updates]
  return cut(updates) and abs(costs[0]) < 1e-6 and min(costs[1:]) > 1e-6


def cut_and_imitated(updates: Updates) -> bool:
  """The NLL of rewarded responses is in every loss, and the epochs lower it."""
  costs = [u["loss/positive"] for u in updates]
  return cut(updates) and min(costs) > 0 and sum(costs[2:4]) < sum(costs[:2])


def truncated(updates: Updates) -> bool:
  """Ratios exceed the weight's bound of 1.2, weights do not."""
  return (
      uncut(updates)
      and max(u["ratio_max"] for u in updates) > 1.2
      and max(u["ratio_after_max"] for u in updates) < 1.2 + 1e-6
  )


def damped(updates: Updates) -> bool:
  """The sigmoid weakens gradients as ratios leave 1, and drops none."""
  gates = [u["gate"] for u in updates]
  return abs(gates[0] - 1) < 1e-6 and min(gates) < 0.999 and uncut(updates)


def tapered(updates: Updates) -> bool:
  return (
      max(u["ratio_max"] for u in updates) > 1
      and max(u["ratio_after_max"] for u in updates) < 1 + 1e-6
      and min(u["ratio_after/mean"] for u in updates) < 0.99
  )


def budgeted(updates: Updates) -> bool:
  """Away tokens are cut once their prefix has spent more than it may."""
  return cut(updates) and max(u["budget_max"] for u in updates) > 1


def accepted(updates: Updates) -> bool:
  """All tokens at the first update, some of them later."""
  shares = [u["exempt"] for u in updates]
  return shares[0] == 1 and 0 < min(shares) < 1


def accepted_or_cut(updates: Updates) -> bool:
  return accepted(updates) and cut(updates)


def accepted_or_truncated(updates: Updates) -> bool:
  return accepted(updates) and truncated(updates)


def weighted(updates: Updates) -> bool:
  """Proximal/behavior is 1 on the fresh round and not on the stale one."""
  gaps = [abs(u["correction/mean"] - 1) for u in updates]
  return cut(updates) and max(gaps[:4]) < 1e-5 and min(gaps[4:]) > 1e-5


def stopped(updates: Updates) -> bool:
  """The epochs of a round end before the update that exceeds the limit."""
  counts = [sum(u["round"] == number for u in updates) for number in (0, 1)]
  largest = max(u["ratio_deviation"] for u in updates)
  return max(counts) < 4 and largest <= STOP


def capped(updates: Updates) -> bool:
  """Live/behavior is truncated at 2, and nothing is dropped."""
  return max(u["correction_cut"] for u in updates) > 0 and uncut(updates)


def zeroed(updates: Updates) -> bool:
  """The correction truncates or zeroes weights of the stale round."""
  return all(u["correction_cut"] > 0 for u in updates)


def rejected(updates: Updates) -> bool:
  return all(0 < u["rejected"] < 1 for u in updates)


def both(updates: Updates) -> bool:
  return zeroed(updates) and rejected(updates)


def apart(updates: Updates) -> bool:
  return all(abs(u["correction/mean"] - 1) > 1e-5 for u in updates)
