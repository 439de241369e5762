"""A few records, scored alone under settings other than the recorded ones."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import scoring
from jaxrl_llm.training import supports as supports_lib

# Records and tokens of a probe: enough for a mean, few enough to be cheap.
_RECORDS = 4
_TOKENS = 2048
_ENOUGH_TRAINED = 128
# Most likely ids that a truncated support is looked for in.
_TOPK = 64


@dataclasses.dataclass(frozen=True)
class Setting:
  """How records are scored and compared; the default is as they say.

  Attributes:
    factor: of the recorded temperatures.
    jump: added to the positions of response tokens.
    shift: log-probs recorded at t are taken for those of token t + shift.
    support: (kind, number): what log μ was renormalised over. "recorded" adds
      the recorded kept mass; "all" adds nothing; "top_k", "top_p" and "min_p"
      add the mass that the policy gives to such a support.
  """

  factor: float = 1.0
  jump: int = 0
  shift: int = 0
  support: tuple[str, float] = ("recorded", 0)


@dataclasses.dataclass(frozen=True)
class Scored:
  """What the policy says of every token of the rows.

  Attributes:
    logprobs: float [K, T], nats; 0 outside the trained tokens.
    top: float [K, T, N], log-probs of the most likely ids, falling.
  """

  logprobs: np.ndarray
  top: np.ndarray


@dataclasses.dataclass(frozen=True)
class Probe:
  """K records of one length T, each alone in a row without padding.

  Attributes:
    rollouts: the records.
    mask: bool [K, T], trained tokens.
    recorded: float [K, T], behavior_logprobs, nats.
    kept: float [K, T], log_kept_mass.
    packed: float [K, T], log-probs by the trainer in packed rows.
    passes: (whether in float32, factor, jump) -> Scored; kept once made.
  """

  rollouts: Sequence[types.Rollout]
  mask: np.ndarray
  recorded: np.ndarray
  kept: np.ndarray
  packed: np.ndarray
  passes: Callable[[bool, float, int], Scored]

  @classmethod
  def of(
      cls,
      policy: policy_lib.Policy,
      params: types.PyTree,
      rollouts: Sequence[types.Rollout],
      packed: Sequence[np.ndarray],
      mesh: jax.sharding.Mesh,
  ) -> "Probe":
    """Chooses the records; arguments as in gap.explain."""
    chosen = choose(indices.Index.of(rollouts))
    members = [rollouts[number] for number in chosen]
    lay = functools.partial(_rows, members)
    mask = lay([indices.trained_mask(rollout) for rollout in members])
    return cls(
        members,
        mask,
        lay([rollout.behavior_logprobs for rollout in members]),
        lay([rollout.log_kept_mass for rollout in members]),
        lay([packed[number] for number in chosen]),
        _passes(policy, params, members, mask, mesh),
    )

  @property
  def tokens(self) -> int:
    """Trained tokens."""
    return int(self.mask.sum())

  @property
  def temperature(self) -> float:
    """Recorded temperature of the first record."""
    return self.rollouts[0].temperature

  def versions(self) -> str:
    """Names the policy versions that drew the trained tokens."""
    found = np.concatenate([
        rollout.policy_versions[indices.trained_mask(rollout)]
        for rollout in self.rollouts
    ])
    low, high = int(found.min()), int(found.max())
    return f"drawn by version {low}" + (f" to {high}" if high > low else "")

  def score(self, setting: Setting) -> Scored:
    """Scores in float32."""
    return self.passes(True, setting.factor, setting.jump)

  def rounded(self) -> np.ndarray:
    """float [K, T]: log-probs in bfloat16, as recorded."""
    return self.passes(False, 1.0, 0).logprobs

  def mean(self, gaps: np.ndarray) -> float:
    """Mean of |gaps| over the trained tokens."""
    return float(np.abs(gaps)[self.mask].mean())

  def distance(self, logprobs: np.ndarray) -> float:
    """Mean distance of log-probs [K, T] from those recorded, nats."""
    return self.mean(logprobs - self.recorded - self.kept)

  def gap(self, setting: Setting) -> float:
    """Mean distance of what was recorded from the policy's float32, nats."""
    scored = self.score(setting)
    row, here = np.nonzero(self.mask)
    there = here + setting.shift
    inside = (there >= 0) & (there < self.mask.shape[1])
    inside[inside] &= self.mask[row[inside], there[inside]]
    if not inside.any():
      return math.inf
    row, here, there = row[inside], here[inside], there[inside]
    kind, number = setting.support
    if kind == "recorded":
      kept = self.kept[row, here]
    elif kind == "all":
      kept = 0.0
    else:
      kept = supports_lib.log_kept(scored.top[row, there], kind, number)
    gaps = scored.logprobs[row, there] - self.recorded[row, here] - kept
    return float(np.abs(gaps).mean())

  def supports(self) -> list[tuple[str, float]]:
    """The supports worth trying."""
    count = self.score(Setting()).top.shape[-1]
    return [("all", 0), *supports_lib.candidates(count)]

  def describe(self, cause: str, setting: Setting) -> str:
    """Says in words what a setting that fits tells of a cause."""
    if cause == "temperature":
      return (
          f"temperature {setting.factor * self.temperature:.3g} fits, the"
          f" records say {self.temperature:.3g}"
      )
    if cause == "support":
      kind, number = setting.support
      if kind == "all":
        return "log-probs of the whole vocabulary fit, without the kept mass"
      return f"{kind}={number:g} fits, the records hold another kept mass"
    if setting.shift:
      side = "next" if setting.shift > 0 else "last"
      return f"the recorded log-probs are those of the {side} token"
    return f"response positions {setting.jump:+d} fit"


def choose(index: indices.Index) -> list[int]:
  """Chooses a few records of one length, with enough trained tokens.

  Of those that it has chosen it chooses all.

  Returns:
    Numbers of records. Of the lengths that reach the most trained tokens (up
    to a limit), the shortest.
  """
  by_length: dict[int, list[int]] = {}
  for number, length in enumerate(index.lengths.tolist()):
    members = by_length.setdefault(length, [])
    few = len(members) < max(1, min(_RECORDS, _TOKENS // length))
    if few and index.trained_tokens[number]:
      members.append(number)

  def worth(length):
    trained = int(index.trained_tokens[by_length[length]].sum())
    return min(trained, _ENOUGH_TRAINED), -length

  return by_length[max(by_length, key=worth)]


def _rows(rollouts, responses: Sequence[np.ndarray]) -> np.ndarray:
  """Lays an [R] per record behind its prompt, as [K, T]."""
  return np.stack([
      np.concatenate([np.zeros(r.prompt_tokens.size, values.dtype), values])
      for r, values in zip(rollouts, responses)
  ])


def _passes(policy, params, rollouts, mask, mesh) -> Callable[..., Scored]:
  """Makes the function behind `Probe.passes`."""
  rows = sharding_lib.rows(mesh)
  parts = math.prod(mesh.shape[axis] for axis in ("data", "fsdp"))
  count = -(-len(rollouts) // parts) * parts
  # Whole rows for every device: records come again.
  spread = lambda array: np.resize(array, (count, *array.shape[1:]))
  tokens = np.stack([
      np.concatenate([r.prompt_tokens, r.response_tokens]) for r in rollouts
  ]).astype(np.int32)
  starts = np.array([[r.prompt_tokens.size] for r in rollouts])
  warm = np.array([[r.temperature] for r in rollouts], np.float32)
  index = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
  topk = min(_TOPK, policy.config.vocab_size)
  score = {
      exact: _scorer(policy, exact, topk if exact else 0, mesh)
      for exact in (True, False)
  }

  @functools.cache
  def run(exact: bool, factor: float, jump: int) -> Scored:
    batch = {
        "tokens": tokens,
        "positions": (index + jump * (index >= starts)).astype(np.int32),
        "temperatures": np.broadcast_to(
            warm * np.float32(factor), tokens.shape
        ),
        "mask": mask,
    }
    placed = scoring.place(jax.tree.map(spread, batch), rows)
    with jax.set_mesh(mesh):
      found = jax.device_get(score[exact](params, placed))
    logprobs, top = (
        None if x is None else x[: len(rollouts)] for x in found
    )
    return Scored(logprobs, top)

  return run


@functools.lru_cache(maxsize=8)
def _scorer(policy, exact: bool, topk: int, mesh) -> Callable[..., Any]:
  """Jits (params, rows) -> (log-probs, most likely log-probs or None)."""
  dtype = "float32" if exact else "bfloat16"
  policy = dataclasses.replace(policy, compute_dtype=dtype)

  def score(params, batch):
    whole = jnp.ones_like(batch["tokens"])
    scored = policy.token_logprobs(
        params,
        batch["tokens"],
        whole,
        whole,
        batch["positions"],
        batch["temperatures"],
        batch["mask"],
        topk=topk,
    )
    return scored.logprobs, scored.topk_logprobs

  return jax.jit(score, out_shardings=sharding_lib.replicated(mesh))
