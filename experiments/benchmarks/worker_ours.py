"""This package as a program of `turns`: generation, and a training step.

Command: python experiments/benchmarks/worker_ours.py MODEL [DTYPE]
Hardware: one or two CPU cores.
Expect: waits for jobs on its input; started by generation.py and training.py.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import turns

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import settings as settings_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.rollout import engine as engine_lib
from jaxrl_llm.rollout import responses
from jaxrl_llm.rollout import sampler
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import settings as train_settings
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import step


class Worker:
  """The model, and what was made for earlier jobs."""

  def __init__(self, path: str, dtype: str):
    settings = settings_lib.ModelSettings(path, "", "", dtype, "layers")
    self._policy, self._params = policy_lib.load(path, settings)

  @functools.cache
  def _engine(self, slots, prompt, new, steps):
    return engine_lib.Engine(
        self._policy,
        self._params,
        (),
        sampler.SamplingSettings(max_new_tokens=new),
        engine_lib.Shapes(slots, min(slots, 8), (prompt,), steps),
    )

  def generate(
      self, prompts: int, samples: int, slots: int, prompt: int, new: int,
      temperature: float = 0.0, steps: int = 8,
  ) -> dict[str, float]:
    """Draws prompts × samples responses of `new` tokens each."""
    engine = self._engine(slots, prompt, new, steps)
    draw = np.random.default_rng(0)
    vocabulary = self._policy.config.vocab_size
    requests = [
        responses.Request(
            tokens=draw.integers(0, vocabulary, prompt).astype(np.int32),
            words=sampler.request_words(
                "rollout", 0, 0, [number] * samples, range(samples)
            ),
            temperatures=np.full(samples, temperature, np.float32),
        )
        for number in range(prompts)
    ]
    before = engine_lib.compilations()
    seconds = turns.timed(lambda: list(engine.run(requests)))
    return {
        "seconds": seconds,
        "tokens": prompts * samples * new,
        "compilations": engine_lib.compilations() - before,
    }

  @functools.cache
  def _training(self, rows, tokens):
    """Returns (steps, state, a batch, its weights)."""
    settings = train_settings.TrainSettings(
        rows_per_microbatch=rows, tokens_per_row=tokens, learning_rate=1e-6
    )
    spec = algorithms.build({"name": "grpo"})
    mesh = sharding_lib.make_mesh("data=1")
    state = state_lib.create(self._params, optimizer.build(settings), "")
    draw = np.random.default_rng(0)
    shape = (rows, tokens)
    ones = jnp.ones(shape, jnp.int32)
    random = lambda scale: jnp.asarray(
        -scale * draw.random(shape), jnp.float32
    )
    chosen = draw.integers(0, self._policy.config.vocab_size, shape)
    terms = types.Terms(
        mask=jnp.broadcast_to(jnp.arange(tokens) >= tokens // 4, shape),
        segment_ids=ones,
        advantages=jnp.asarray(draw.normal(size=shape), jnp.float32),
        behavior_logprobs=random(5.0),
        proximal_logprobs=random(5.0),
    )
    positions = jnp.broadcast_to(jnp.arange(tokens), shape)
    batch = types.Batch(
        jnp.asarray(chosen, jnp.int32), ones, ones, positions,
        jnp.ones(shape, jnp.float32), terms,
    )
    weights = objective.denominators(spec, terms)
    steps = step.build(self._policy, spec, settings, mesh)
    return steps, [state.params, state.opt_state, state.counters], batch, weights

  def train(self, rows: int, tokens: int) -> dict[str, float]:
    """One update on `rows` rows: forward, backward, AdamW."""
    steps, held, batch, weights = self._training(rows, tokens)

    def update():
      totals = steps.start(held[0], batch, weights, None)
      totals = steps.add(held[0], totals, batch, weights, None)
      *held[:], _ = steps.update(*held, totals)
      jax.block_until_ready(held)

    return {"seconds": turns.timed(update), "tokens": rows * tokens}


def limits(**unused) -> dict[str, float]:
  """What this machine gives: GFLOP/s of one product, GB/s of one sum."""
  del unused
  size = 2048
  left = jnp.ones((size, size), jnp.bfloat16)
  multiply = jax.jit(
      functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
  )
  long = jnp.ones(64 * 2**20, jnp.float32)
  add = jax.jit(jnp.sum)
  multiply(left, left).block_until_ready(), add(long).block_until_ready()
  product = turns.timed(lambda: multiply(left, left).block_until_ready())
  summed = turns.timed(lambda: add(long).block_until_ready())
  return {
      "seconds": product + summed,
      "gflops": 2e-9 * size**3 / product,
      "gbytes": 1e-9 * long.nbytes / summed,
  }


if __name__ == "__main__":
  worker = Worker(sys.argv[1], (sys.argv[2:] or ["bfloat16"])[0])
  turns.serve({
      "generate": worker.generate, "train": worker.train, "limits": limits,
  })
