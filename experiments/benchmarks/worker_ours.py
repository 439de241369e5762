"""This package as a program of `turns`: generation, and training steps.

Command: python experiments/benchmarks/worker_ours.py MODEL [DTYPE]
Hardware: one or two CPU cores.
Expect: waits for jobs on its input; started by speed.py.
"""

import dataclasses
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
from jaxrl_llm.rollout import engine as engine_lib
from jaxrl_llm.rollout import responses
from jaxrl_llm.rollout import sampler
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import packed
from jaxrl_llm.training import scoring
from jaxrl_llm.training import settings as train_settings
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib


class Worker:
  """The model, its optimizer, and what was made for earlier jobs."""

  def __init__(self, path: str, dtype: str):
    settings = settings_lib.ModelSettings(path, "", "", dtype, "products")
    self._policy, self._params = policy_lib.load(path, settings)
    # Parameters, optimizer state and counters, once something is trained.
    self._held = []
    self._draw = np.random.default_rng(0)

  @functools.cached_property
  def _vocabulary(self):
    return self._policy.config.vocab_size

  def _engine(self, slots, prompt, new, steps):
    return engine_lib.Engine(
        self._policy,
        self._held[0] if self._held else self._params,
        (),
        sampler.SamplingSettings(max_new_tokens=new),
        engine_lib.Shapes(slots, min(slots, 8), (prompt,), steps),
    )

  _kept_engine = functools.cache(_engine)

  def _requests(self, prompts, samples, prompt, temperature):
    """Asks for responses to random prompts."""
    return [
        responses.Request(
            tokens=self._draw.integers(0, self._vocabulary, prompt).astype(
                np.int32
            ),
            words=sampler.request_words(
                "rollout", 0, 0, [number] * samples, range(samples)
            ),
            temperatures=np.full(samples, temperature, np.float32),
        )
        for number in range(prompts)
    ]

  def generate(
      self, prompts: int, samples: int, slots: int, prompt: int, new: int,
      temperature: float = 0.0, steps: int = 8, shortest: int = 0,
  ) -> dict[str, float]:
    """Draws prompts × samples responses of `new` tokens each.

    With `shortest`, those of a prompt have a limit between it and `new`, the
    limits of all prompts evenly spread and in random order.
    """
    engine = self._kept_engine(slots, prompt, new, steps)
    requests = self._requests(prompts, samples, prompt, temperature)
    limits = np.full(prompts, new)
    if shortest:
      limits = np.linspace(shortest, new, prompts).astype(int)
      limits = np.random.default_rng(0).permutation(limits)
    requests = [
        dataclasses.replace(request, limit=int(limit))
        for request, limit in zip(requests, limits)
    ]
    before = engine_lib.compilations()
    seconds = turns.timed(lambda: list(engine.run(requests)))
    return {
        "seconds": seconds,
        "tokens": int(samples * limits.sum()),
        "compilations": engine_lib.compilations() - before,
    }

  @functools.cache
  def _trainer(self, rows, tokens):
    """Returns a trainer of GRPO; makes the optimizer state, once."""
    settings = train_settings.TrainSettings(
        rows_per_microbatch=rows, tokens_per_row=tokens, learning_rate=1e-6
    )
    trainer = trainer_lib.build(
        self._policy, algorithms.build({"name": "grpo"}), settings,
        mesh=None, seed=0, reference_params=None,
    )
    if not self._held:
      tool = optimizer.build(settings)
      state = state_lib.create(self._params, tool, "")
      state = state_lib.place(state, self._policy, tool, trainer.mesh)
      self._held = [state.params, state.opt_state, state.counters]
      self._params = None
    return trainer

  @functools.cache
  def _rows(self, rows, tokens):
    """Returns a batch of random rows and its weights."""
    shape = (rows, tokens)
    ones = jnp.ones(shape, jnp.int32)
    random = lambda scale: jnp.asarray(
        -scale * self._draw.random(shape), jnp.float32
    )
    terms = types.Terms(
        mask=jnp.broadcast_to(jnp.arange(tokens) >= tokens // 4, shape),
        segment_ids=ones,
        advantages=jnp.asarray(self._draw.normal(size=shape), jnp.float32),
        behavior_logprobs=random(5.0),
        proximal_logprobs=random(5.0),
    )
    chosen = self._draw.integers(0, self._vocabulary, shape)
    positions = jnp.broadcast_to(jnp.arange(tokens), shape)
    batch = types.Batch(
        jnp.asarray(chosen, jnp.int32), ones, ones, positions,
        jnp.ones(shape, jnp.float32), terms,
    )
    spec = self._trainer(rows, tokens).spec
    return batch, objective.denominators(spec, terms)

  def train(self, rows: int, tokens: int) -> dict[str, float]:
    """One update on `rows` rows: forward, backward, AdamW."""
    trainer = self._trainer(rows, tokens)
    batch, weights = self._rows(rows, tokens)

    def update():
      totals = trainer.steps.start(self._held[0], batch, weights, None)
      totals = trainer.steps.add(self._held[0], totals, batch, weights, None)
      self._apply(trainer, totals)

    return {"seconds": turns.timed(update), "tokens": rows * tokens}

  def _apply(self, trainer, totals):
    """Updates the parameters."""
    *self._held, _ = trainer.steps.update(*self._held, totals)
    jax.block_until_ready(self._held)

  def step(
      self, prompts: int, samples: int, slots: int, prompt: int, new: int,
      steps: int = 8,
  ) -> dict[str, float]:
    """A whole step: draw groups of responses, score them, update.

    Four responses share their prompt in a row; all rows are one micro-batch.
    """
    count = prompts * samples
    trainer = self._trainer(-(-count // 4), prompt - 1 + 4 * (new + 1))

    def whole():
      engine = self._engine(slots, prompt, new, steps)
      requests = self._requests(prompts, samples, prompt, 1.0)
      rollouts = [
          _rollout(number, sample, requests[number].tokens, response)
          for number, sample, response in engine.run(requests)
      ]
      terms = self._terms(trainer, rollouts)
      work = minibatch.build(trainer, rollouts, terms)
      totals = minibatch.accumulate(trainer, self._held[0], work, 0)
      self._apply(trainer, totals)

    with jax.set_mesh(trainer.mesh):
      return {"seconds": turns.timed(whole), "tokens": count * new}

  def _terms(self, trainer, rollouts):
    """Returns advantages and proximal log-probs, as `prepare` makes them."""
    advantages = trainer.steps.advantages(
        np.array([x.reward for x in rollouts], np.float32),
        np.array([x.group_id for x in rollouts], np.int32),
        np.array([x.response_tokens.size for x in rollouts]),
    )
    rows = packed.Rows.pack(trainer.shape, rollouts)
    pieces = packed.cut(rows.assemble({}), trainer.shape.rows, rows.count)
    scored = [
        trainer.steps.score(
            self._held[0], scoring.place(piece, trainer.rows), 0
        ).logprobs
        for piece in pieces
    ]
    logprobs = np.concatenate(jax.device_get(scored))
    return {
        "advantages": np.asarray(advantages),
        "proximal_logprobs": scoring.responses(logprobs, rows.index, rows.rows),
    }


def _rollout(
    number: int, sample: int, prompt: np.ndarray, response: responses.Response
) -> types.Rollout:
  """Makes a record; the reward is the share of odd ids."""
  size = response.tokens.size
  return types.Rollout(
      record_id=number << 16 | sample, prompt_id=number, group_id=number,
      sample_index=sample, round=0, prompt_tokens=prompt,
      response_tokens=response.tokens, response_mask=np.ones(size, bool),
      behavior_logprobs=response.logprobs,
      log_kept_mass=response.log_kept_mass,
      policy_versions=np.zeros(size, np.int32), lineage="", window_start=0,
      topk_ids=response.topk_ids, topk_logprobs=response.topk_logprobs,
      finish_reason=response.finish_reason, role="train", temperature=1.0,
      reward=float(np.mean(response.tokens % 2)), reward_parts={},
      reference_answer="", prompt_text="", response_text="",
  )


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
      "generate": worker.generate, "train": worker.train,
      "step": worker.step, "limits": limits,
  })
