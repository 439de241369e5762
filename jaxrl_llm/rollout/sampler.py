"""Draws tokens from truncated softmax distributions, one key per token.

Temperature first, then top-k, then top-p, then min-p. Each keeps the likely
end of the vocabulary, so together they are one threshold on the probability,
found without a sort; tokens that tie with the last one kept are kept.

A draw is a two-stage Gumbel maximum: first among blocks of the vocabulary by
their log-mass, then among the tokens of the block. That is exact, and needs
hundreds of random numbers where one stage needs V of them.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import types

Array = types.Array

# Random streams; the same prompt and sample draw different noise in each.
STREAMS = {"rollout": 0, "evaluation": 1, "baseline": 2}
# Tokens of one block of the two-stage draw; near √V for V around 10^5.
BLOCK = 256
# Fixed, so that no global option of JAX changes what a seed means.
_PRNG = "threefry2x32"


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
  """How responses are drawn (config.sampling).

  Attributes:
    temperature: divides the logits; 0 takes the most likely token (evaluation
      and baselines only).
    top_k: most likely tokens kept; 0 disables.
    top_p: mass, after top_k, that the fewest most likely tokens must reach;
      1 disables.
    min_p: share of the best token's probability that a token needs; 0
      disables.
    max_new_tokens: longest response in tokens.
    record_topk: K most likely ids recorded per token; 0 records none.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  max_new_tokens: int = 16
  record_topk: int = 0

  def __post_init__(self):
    def need(name, condition, expected, remedy):
      if not condition:
        raise ValueError(
            f"sampling.{name}: expected {expected}, found "
            f"{getattr(self, name)!r}; {remedy}."
        )

    need(
        "temperature", 0 <= self.temperature < float("inf"), "a number >= 0",
        "1 samples from the model itself, 0 takes the most likely token",
    )
    need("top_k", self.top_k >= 0, "an integer >= 0", "0 disables it")
    need("top_p", 0 < self.top_p <= 1, "0 < top_p <= 1", "1 disables it")
    need("min_p", 0 <= self.min_p < 1, "0 <= min_p < 1", "0 disables it")
    need(
        "max_new_tokens", self.max_new_tokens >= 1, "an integer >= 1",
        "give the response limit in tokens",
    )
    need(
        "record_topk", self.record_topk >= 0, "an integer >= 0",
        "0 records none",
    )

  @property
  def truncation(self) -> "Truncation":
    return Truncation(self.top_k, self.top_p, self.min_p)


@dataclasses.dataclass(frozen=True)
class Truncation:
  """The part of the settings that decides which tokens may be drawn."""

  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0

  @property
  def active(self) -> bool:
    return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draw:
  """One token per row.

  Attributes:
    tokens: int32 [S].
    logprobs: float32 [S], nats, of the distribution drawn from.
    log_kept_mass: float32 [S], ≤ 0; logprobs + log_kept_mass is the
      full-vocabulary, temperature-scaled log-prob.
    topk_ids: int32 [S, K], most likely ids, best first.
    topk_logprobs: float32 [S, K]; like `logprobs`, adding log_kept_mass gives
      the full-vocabulary log-prob. So an id that truncation removed has a
      finite entry here although it could not be drawn.
  """

  tokens: Array
  logprobs: Array
  log_kept_mass: Array
  topk_ids: Array
  topk_logprobs: Array


def request_words(
    stream: str,
    seed: int,
    round_number: int,
    prompt_ids: Sequence[int],
    samples: Sequence[int],
) -> np.ndarray:
  """Names each response by the words that its key is folded from.

  Args:
    stream: one of STREAMS.
    seed: any integer of up to 64 bits.
    round_number: generation round k.
    prompt_ids: 63-bit ids, one per response.
    samples: j, one per response.

  Returns:
    uint32 [N, 7]: stream, seed (low, high), round, prompt (low, high), j.
  """
  low = (1 << 32) - 1
  head = [STREAMS[stream], seed & low, (seed >> 32) & low, round_number]
  return np.array(
      [
          [*head, prompt & low, prompt >> 32, sample]
          for prompt, sample in zip(prompt_ids, samples, strict=True)
      ],
      np.uint32,
  ).reshape(-1, 7)


def response_keys(words: Array) -> Array:
  """Folds uint32 [S, 7] of `request_words` into raw keys, uint32 [S, 2]."""

  def fold(row):
    key = jax.random.key(0, impl=_PRNG)
    for word in range(words.shape[1]):
      key = jax.random.fold_in(key, row[word])
    return jax.random.key_data(key)

  return jax.vmap(fold)(words)


def probability_threshold(
    probabilities: Array, truncation: Truncation
) -> Array:
  """Returns the least probability that a kept token may have.

  Args:
    probabilities: float32 [S, V], rows sum to 1, temperature applied.
    truncation: static; only what is active costs time.

  Returns:
    float32 [S].
  """
  # Non-negative floats order as their bits, so a threshold is found exactly
  # by fixing one bit after another, from the highest of a number ≤ 1 down.
  bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

  def highest(reaches, floor):
    def fix(step, found):
      candidate = found | (1 << (29 - step))
      return jnp.where(reaches(candidate[:, None]), candidate, found)

    found = jax.lax.fori_loop(0, 30, fix, jnp.zeros_like(floor))
    return jnp.maximum(found, floor)

  threshold = jnp.zeros(probabilities.shape[:1], jnp.int32)
  if truncation.top_k:
    threshold = highest(
        lambda t: jnp.sum(bits >= t, axis=-1) >= truncation.top_k, threshold
    )
  if truncation.top_p < 1:
    kept = jnp.where(bits >= threshold[:, None], probabilities, 0.0)
    target = truncation.top_p * jnp.sum(kept, axis=-1)
    threshold = highest(
        lambda t: jnp.sum(jnp.where(bits >= t, kept, 0.0), axis=-1) >= target,
        threshold,
    )
  threshold = jax.lax.bitcast_convert_type(threshold, jnp.float32)
  best = jnp.max(probabilities, axis=-1)
  # The best token stays, whatever the rounding.
  return jnp.minimum(jnp.maximum(threshold, truncation.min_p * best), best)


def draw(
    logits: Array,
    keys: Array,
    positions: Array,
    temperatures: Array,
    truncation: Truncation = Truncation(),
    topk: int = 0,
) -> Draw:
  """Draws one token per row from softmax(logits / temperature), truncated.

  Args:
    logits: float [S, V], finite or -inf.
    keys: uint32 [S, 2] of `response_keys`.
    positions: int32 [S], t, index of the token within its response.
    temperatures: float32 [S]; 0 takes the most likely token and reports its
      log-prob at temperature 1 and a kept mass of 1.
    truncation: which tokens may be drawn; static.
    topk: K, number of most likely ids returned; static, ≤ V.

  Returns:
    See Draw. A row's draw depends on that row alone.
  """
  rows, vocabulary = logits.shape
  greedy = temperatures == 0
  scaled = logits.astype(jnp.float32)
  scaled /= jnp.where(greedy, 1.0, temperatures)[:, None]
  padding = -vocabulary % BLOCK
  blocks = jnp.pad(scaled, ((0, 0), (0, padding)), constant_values=-jnp.inf)
  blocks = jnp.reshape(blocks, (rows, -1, BLOCK))
  peaks = jnp.max(blocks, axis=-1)
  peak = jnp.max(peaks, axis=-1)
  weights = jnp.exp(blocks - peak[:, None, None])
  masses = jnp.sum(weights, axis=-1)
  total = jnp.sum(masses, axis=-1)
  log_total = peak + jnp.log(total)
  log_kept_mass = jnp.zeros_like(total)
  if truncation.active:
    probabilities = jnp.reshape(weights / total[:, None, None], (rows, -1))
    threshold = probability_threshold(probabilities, truncation)
    kept = probabilities >= threshold[:, None]
    kept &= probabilities > 0
    kept = jnp.reshape(kept, weights.shape)
    blocks = jnp.where(kept, blocks, -jnp.inf)
    masses = jnp.sum(weights, axis=-1, where=kept)
    log_kept_mass = jnp.log(jnp.sum(masses, axis=-1) / total)
    log_kept_mass = jnp.where(greedy, 0.0, jnp.minimum(log_kept_mass, 0.0))
  tokens, chosen = _gumbel_maximum(
      blocks, peaks, masses, keys, positions, greedy
  )
  offset = log_total + log_kept_mass
  ids = jnp.zeros((rows, 0), jnp.int32)
  logprobs = jnp.zeros((rows, 0), jnp.float32)
  if topk:
    logprobs, ids = jax.lax.top_k(scaled, topk)
    logprobs -= offset[:, None]
  return Draw(tokens, chosen - offset, log_kept_mass, ids, logprobs)


def _gumbel_maximum(blocks, peaks, masses, keys, positions, greedy):
  """Returns tokens int32 [S] and their scaled logits [S].

  Args:
    blocks: [S, V / BLOCK, BLOCK] scaled logits, -inf where not kept.
    peaks: [S, V / BLOCK], the highest logit of each block.
    masses: [S, V / BLOCK], the kept mass of each block, up to a factor.
    keys: uint32 [S, 2].
    positions: int32 [S].
    greedy: bool [S], take the maximum without noise.
  """

  def pick(blocks, peaks, masses, key, position, greedy):
    key = jax.random.wrap_key_data(key, impl=_PRNG)
    key = jax.random.fold_in(key, position)
    first, second = jax.random.split(key)
    noise = jax.random.gumbel(first, masses.shape)
    block = jnp.argmax(jnp.where(greedy, peaks, jnp.log(masses) + noise))
    logits = blocks[block]
    noise = jax.random.gumbel(second, logits.shape)
    lane = jnp.argmax(jnp.where(greedy, logits, logits + noise))
    return (block * BLOCK + lane).astype(jnp.int32), logits[lane]

  return jax.vmap(pick)(blocks, peaks, masses, keys, positions, greedy)
