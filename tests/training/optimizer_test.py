"""The optimizer against AdamW written out in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.training import optimizer
from jaxrl_llm.training import settings as settings_lib


def test_schedules_by_hand():
  # Warm-up of 3: updates 1 to 3 at 1/4, 2/4, 3/4 of the rate, then all of it.
  rates = optimizer.schedule(
      settings_lib.TrainSettings(learning_rate=4.0, warmup_updates=3)
  )
  got = [float(rates(update)) for update in range(5)]
  np.testing.assert_allclose(got, [1, 2, 3, 4, 4], rtol=1e-6)
  # Half a cosine from update 2 to update 6: (1 + cos(π k / 4)) / 2.
  rates = optimizer.schedule(
      settings_lib.TrainSettings(
          learning_rate=1.0,
          warmup_updates=2,
          schedule="cosine",
          total_updates=6,
      )
  )
  got = [float(rates(update)) for update in range(7)]
  want = [1 / 3, 2 / 3, 1, 0.853553, 0.5, 0.146447, 0]
  np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_three_updates_by_hand(decay):
  settings = settings_lib.TrainSettings(
      learning_rate=0.1, weight_decay=decay, max_grad_norm=1.0, epsilon=1e-8
  )
  transform = optimizer.build(settings)
  params = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[3.0]])}
  state = transform.init(params)
  flat = np.array([1.0, -2.0, 3.0])
  m, v = np.zeros(3), np.zeros(3)
  # Norms 5, 0.13 and 13: the first and the last are cut to 1.
  for t, raw in enumerate(([3, 0, 4], [0.03, 0.04, 0.12], [3, 4, 12]), 1):
    grad = np.array(raw, float)
    grads = {"a": jnp.array(grad[:2]), "b": jnp.array(grad[2:])[None]}
    updates, state = transform.update(grads, state, params)
    params = jax.tree.map(jnp.add, params, updates)
    grad /= max(1.0, np.linalg.norm(grad))
    m = 0.9 * m + 0.1 * grad
    v = 0.95 * v + 0.05 * grad**2
    moved = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
    flat = flat - 0.1 * (moved + decay * flat)
  got = np.concatenate([params["a"], params["b"][0]])
  np.testing.assert_allclose(got, flat, rtol=1e-5)
