"""cached_attention.py against softmax over one whole sequence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import cached_attention
from jaxrl_llm.models import scores as scores_lib

# Sequences of T tokens; the last of each is the new one.
N, K, H, CAPACITY, RECENT = 4, 2, 8, 64, 3
# Slot 0 holds 3 tokens, slot 1 holds 6; then 1 recent one and the new one.
LENGTHS, INDEX = (3, 6), 1
SEQUENCES = [
    tuple(
        np.asarray(jax.random.normal(key, (length + INDEX + 1, heads, H)))
        for key, heads in zip(
            jax.random.split(jax.random.key(length), 3), (N, K, K)
        )
    )
    for length in LENGTHS
]


def _expected(queries, keys, values, window, scale, softcap):
  """Softmax over the keys that the last token reads, head by head: [N, H]."""
  outputs, last = np.zeros((N, H)), len(keys) - 1
  read = [t for t in range(len(keys)) if last - t < window]
  for head in range(N):
    group = head // (N // K)
    products = keys[read, group] @ queries[last, head] * scale
    if softcap:
      products = softcap * np.tanh(products / softcap)
    weights = np.exp(products - products.max())
    outputs[head] = weights @ values[read, group] / weights.sum()
  return outputs


def _held(index):
  """Returns keys or values by slot: cache [S, K, C, H], recent [S, K, R, H].

  Whatever must not be read is 1e4.
  """
  cache = np.full((2, K, CAPACITY, H), 1e4, np.float32)
  recent = np.full((2, K, RECENT, H), 1e4, np.float32)
  for slot, (length, parts) in enumerate(zip(LENGTHS, SEQUENCES)):
    turned = np.swapaxes(parts[index], 0, 1)
    cache[slot, :, :length] = turned[:, :length]
    recent[slot, :, : INDEX + 1] = turned[:, length:]
  return cache, recent


@pytest.mark.parametrize("window, scale, softcap", [
    (None, None, 0.0),
    # Of slot 0: 5 tokens in all. 1 and 2 end among the recent ones, 3 and 4
    # in the cache, 5 reads slot 0 whole.
    (1, None, 0.0), (2, None, 0.0), (3, 0.9, 1.5), (4, None, 1.5),
    (5, 0.9, 0.0),
])
def test_equals_the_softmax_of_the_whole_sequence(window, scale, softcap):
  (keys, recent_keys), (values, recent_values) = _held(1), _held(2)
  found = cached_attention.attend(
      jnp.stack([queries[-1] for queries, _, _ in SEQUENCES]),
      jnp.swapaxes(keys, 2, 3),
      values,
      jnp.array(LENGTHS),
      recent_keys,
      recent_values,
      INDEX,
      rule=scores_lib.Rule(scale, softcap),
      window=window,
  )
  for slot, sequence in enumerate(SEQUENCES):
    expected = _expected(
        *sequence, window or 99, scale or H**-0.5, softcap
    )
    np.testing.assert_allclose(found[slot], expected, atol=2e-6)
