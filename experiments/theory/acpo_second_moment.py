"""Second moment of the gradient: clipping r A against clipping r.

Command: .venv/bin/python -m experiments.theory.acpo_second_moment
  [--png=runs/theory/acpo_second_moment.png]
Hardware: 1 CPU core, seconds.
Expect: every line `ok`; exit code 1 when a statement fails.

Statement (ACPO, arXiv 2609.36816, Prop. 1): where both retain the same share of
tokens and E‖∇log π‖² is the same whatever (r, A), E[(r A)²; |r A| ≤ α] is at
most PPO's E[(r A)²; kept]. The gap is made of the tokens that one keeps and the
other cuts: Σ |(r A)² − α²| over them.

PPO's clip sets the share; α is the quantile of |r A| that retains as many. The
ratios are log-normal, the advantages normal (whitened GAE), of groups of eight
binary rewards, or heavy-tailed. Every set of tokens is a distribution of its
own, so the statement holds on it exactly, not up to sampling.

Algorithm 1 scales a state's advantages instead, A α / max(α, ‖A‖∞): on-policy,
where r = 1, its tokens are all retained, those of Eq 5 with |A| > α are not.
"""

import dataclasses
import sys

import jax.numpy as jnp
import numpy as np

from experiments.theory import library
from experiments.theory import report
from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective

SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8)  # σ of log r, nats.
HOSTS = {"PPO": {}, "PPO, dual clip": {"dual_clip": 3.0}}
ALPHA = 3.0
GROUP = 8


def grouped(rng: np.random.Generator, count: int) -> np.ndarray:
  """Advantages of groups of eight 0/1 rewards, by the library."""
  chances = np.repeat(rng.random(count // GROUP), GROUP)
  rewards = (rng.random(len(chances)) < chances).astype(float)
  groups = np.repeat(np.arange(count // GROUP), GROUP)
  spec = algorithms.build({"name": "grpo"})
  return np.asarray(
      objective.advantages(spec, rewards, groups, np.ones(len(rewards)))
  )


FAMILIES = {
    "normal A": lambda rng, count: rng.normal(size=count),
    "group A": grouped,
    "heavy-tailed A": lambda rng, count: rng.standard_t(3, size=count),
}


def terms(
    log_ratios: np.ndarray, advantages: np.ndarray, **controls: float
) -> types.Terms:
  """Responses of one token with log-ratios (nats) and advantages, [N, 1]."""
  column = lambda x: jnp.asarray(x, float)[:, None]
  return types.Terms(
      mask=jnp.ones((len(log_ratios), 1), bool),
      advantages=column(advantages),
      proximal_logprobs=column(np.full(len(log_ratios), -2.0)),
      logprobs=column(log_ratios - 2.0),
      controls={k: jnp.asarray(v, float) for k, v in controls.items()},
  )


def retained(
    words: dict[str, object], batch: types.Terms
) -> tuple[np.ndarray, np.ndarray]:
  """(tokens kept, factor of ∇log π) of each token, [N], from the library."""
  spec = algorithms.build(words)
  _, region = library.verdict(spec, batch)
  _, factors = library.gain_and_factors(
      spec, batch, jnp.ones(batch.mask.shape)
  )
  return np.asarray(region.active)[:, 0], np.asarray(factors)[:, 0]


def level(sizes: np.ndarray, count: int) -> float:
  """α that retains `count` of the sizes |r A|: between two of them."""
  ordered = np.sort(sizes)
  beyond = ordered[count] if count < len(ordered) else 2.0 * ordered[-1]
  return float(0.5 * (ordered[count - 1] + beyond))


def predicted_gap(
    sizes: np.ndarray, ppo: np.ndarray, acpo: np.ndarray, alpha: float
) -> float:
  """Mean over all tokens of |(r A)² − α²| where one keeps, the other cuts."""
  return float(np.mean(np.where(ppo != acpo, np.abs(sizes**2 - alpha**2), 0.0)))


def norm_scaled(advantages: np.ndarray, alpha: float) -> np.ndarray:
  """Algorithm 1: A(s,·) α / max(α, ‖A(s,·)‖∞)."""
  return advantages * alpha / max(alpha, np.max(np.abs(advantages)))


@dataclasses.dataclass(frozen=True)
class Pair:
  """PPO and ACPO at one retention.

  Attributes:
    shares: shares of tokens retained, PPO's and ACPO's.
    moments: their second moments.
    gap: predicted difference of the moments.
  """

  shares: tuple[float, float]
  moments: tuple[float, float]
  gap: float


def pair(
    host: dict[str, object], log_ratios: np.ndarray, advantages: np.ndarray
) -> Pair:
  """Runs both objectives on the same tokens."""
  ppo, ppo_factors = retained(
      {"name": "ppo", **host}, terms(log_ratios, advantages)
  )
  sizes = np.abs(np.exp(log_ratios) * advantages)
  alpha = level(sizes, int(np.sum(ppo)))
  acpo, acpo_factors = retained(
      {"name": "acpo_advantage"}, terms(log_ratios, advantages, alpha=alpha)
  )
  return Pair(
      (float(np.mean(ppo)), float(np.mean(acpo))),
      (float(np.mean(ppo_factors**2)), float(np.mean(acpo_factors**2))),
      predicted_gap(sizes, ppo, acpo, alpha),
  )


def on_policy_share(advantages: np.ndarray) -> float:
  """Share of on-policy tokens that |r A| ≤ α retains."""
  batch = terms(np.zeros(len(advantages)), advantages)
  words = {"name": "acpo_advantage", "alpha": ALPHA}
  return float(np.mean(retained(words, batch)[0]))


def _claims(
    pairs: dict[tuple[str, str], list[Pair]], states: np.ndarray
) -> list[report.Claim]:
  everything = [p for row in pairs.values() for p in row]
  shares = np.array([p.shares for p in everything]).T
  moments = np.array([p.moments for p in everything]).T
  # Rounding may lift the largest |A| over α.
  inside = 1.0 - 1e-12
  scaled = [on_policy_share(inside * norm_scaled(a, ALPHA)) for a in states]
  plain = [on_policy_share(a) for a in states]
  within = np.mean(np.abs(states) <= ALPHA, axis=1)
  return [
      report.equal("share retained, ACPO as PPO", shares[1], shares[0], 1e-12),
      report.at_most("share retained by PPO, least", np.min(shares), 0.95),
      report.at_most(
          "E[(r A)²] retained, ACPO / PPO", moments[1] / moments[0],
          1.0 + 1e-12,
      ),
      report.equal(
          "(PPO − ACPO) / PPO, as the differing tokens say",
          (moments[0] - moments[1]) / moments[0],
          [p.gap for p in everything] / moments[0], 1e-9,
      ),
      report.equal(
          "on-policy share retained, A scaled by Algorithm 1", scaled, 1.0,
          1e-12,
      ),
      report.equal(
          "on-policy share retained, A as it is: |A| ≤ α", plain, within, 1e-12
      ),
  ]


@report.in_float64
def check(count: int = 65_536, seed: int = 0) -> report.Report:
  """Compares both objectives over advantages, ratios and dual clip."""
  rng = np.random.default_rng(seed)
  pairs = {}
  for family, draw in FAMILIES.items():
    advantages = draw(rng, count)
    noise = rng.normal(size=count)
    for name, host in HOSTS.items():
      pairs[family, name] = [
          pair(host, sigma * noise - sigma**2 / 2.0, advantages)
          for sigma in SPREADS
      ]
  states = 3.0 * rng.normal(size=(16, 6))
  claims = _claims(pairs, states)
  ratio = lambda row: np.array([p.moments[1] / p.moments[0] for p in row])
  share = lambda row: np.array([p.shares[0] for p in row])
  lines = lambda part: [
      report.Line(
          f"{family}, {name}", np.array(SPREADS), part(row),
          "o-" if name == "PPO" else "x--",
      )
      for (family, name), row in pairs.items()
  ]
  label = "std of log r (nats)"
  return report.Report(claims, [
      report.Panel(
          "Second moment at equal retention, ACPO / PPO", label, lines(ratio),
          "log", "log",
      ),
      report.Panel("Share of tokens retained", label, lines(share), "log"),
  ])


if __name__ == "__main__":
  sys.exit(report.main("acpo_second_moment", check))
