"""tunix as a program of `turns`: generation, and training steps of GRPO.

Command: PEERS/tunix/bin/python experiments/benchmarks/worker_tunix.py MODEL
  [DTYPE]
Hardware: one or two CPU cores.
Expect: waits for jobs on its input; started by speed.py in the environment
  that peers.sh makes.

Its llama3 model, "vanilla" sampler and GRPOLearner, without a reference model
and without recomputation of activations. Weights, activations and optimizer
are all in DTYPE.

tunix 0.1.7 turns every llama3 by a rope base of 10⁶, whatever its config says.
Here it is told the model's own; logits then are those of transformers.
"""

import functools
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tunix.generate import sampler
from tunix.models.llama3 import model as llama3
from tunix.models.llama3 import params as llama3_params
from tunix.rl import common
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout
import turns


class Ids:
  """Writes ids as numbers; what ends and fills is never drawn."""

  def encode(self, text, **unused):
    del unused
    return [int(word) for word in text.split()]

  def decode(self, ids, **unused):
    del unused
    return " ".join(map(str, ids))

  def bos_id(self):
    """Says that nothing is put before a prompt."""
    return 0

  def pad_id(self):
    return -1

  def eos_id(self):
    return -2


class Worker:
  """The model, and what was made for earlier jobs."""

  def __init__(self, path: str, dtype: str):
    found = json.loads((pathlib.Path(path) / "config.json").read_text())
    self._config = llama3.ModelConfig(
        num_layers=found["num_hidden_layers"],
        vocab_size=found["vocab_size"],
        embed_dim=found["hidden_size"],
        hidden_dim=found["intermediate_size"],
        num_heads=found["num_attention_heads"],
        head_dim=found["hidden_size"] // found["num_attention_heads"],
        num_kv_heads=found["num_key_value_heads"],
        rope_theta=found["rope_theta"],
        norm_eps=found["rms_norm_eps"],
        weight_tying=True,
    )
    llama3.apply_rope = functools.partial(
        llama3.apply_rope, rope_theta=found["rope_theta"]
    )
    self._mesh = jax.make_mesh(
        (1, 1), ("fsdp", "tp"), (jax.sharding.AxisType.Auto,) * 2
    )
    self._model = llama3_params.create_model_from_safe_tensors(
        path, self._config, self._mesh, getattr(jnp, dtype)
    )
    self._draw = np.random.default_rng(0)
    self._pace = None

  def logits(self, ids: list[int]) -> list[float]:
    """Returns the logits after a prompt."""
    tokens = jnp.asarray([ids])
    size = tokens.shape[1]
    found, _ = self._model(
        tokens, jnp.arange(size)[None], None,
        jnp.tril(jnp.ones((1, size, size), bool)),
    )
    return np.asarray(found[0, -1], np.float32).tolist()

  def _prompts(self, count, size):
    """Returns random prompts of `size` ids."""
    drawn = self._draw.integers(1, self._config.vocab_size, (count, size))
    return [" ".join(map(str, row)) for row in drawn]

  @functools.cache
  def _sampler(self, length):
    return sampler.Sampler(
        self._model, Ids(),
        sampler.CacheConfig(
            length, self._config.num_layers, self._config.num_kv_heads,
            self._config.head_dim,
        ),
    )

  def generate(
      self, prompts: int, samples: int, prompt: int, new: int,
      temperature: float = 0.0, **unused,
  ) -> dict[str, float]:
    """Draws prompts × samples responses of `new` tokens, in one batch."""
    del unused
    draw = self._sampler(prompt + new)
    texts = np.repeat(self._prompts(prompts, prompt), samples).tolist()
    chosen = {"temperature": temperature, "top_p": 1.0} if temperature else {}

    def answer():
      made = draw(texts, new, prompt, **chosen)
      assert all(len(tokens) == new for tokens in made.tokens)

    return {"seconds": turns.timed(answer), "tokens": prompts * samples * new}

  @functools.cache
  def _learner(self, prompts, samples, prompt, new):
    """Returns a learner of GRPO."""
    roles = rl_cluster.Role
    cluster = rl_cluster.RLCluster(
        actor=self._model,
        tokenizer=Ids(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh={
                role: self._mesh
                for role in (roles.ACTOR, roles.REFERENCE, roles.ROLLOUT)
            },
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.chain(
                    optax.clip_by_global_norm(1.0), optax.adamw(1e-6)
                ),
                eval_every_n_steps=10**6,
                max_steps=10**6,
                mini_batch_size=prompts,
            ),
            rollout_config=base_rollout.RolloutConfig(
                max_tokens_to_generate=new, max_prompt_length=prompt,
                kv_cache_size=prompt + new, temperature=1.0, top_p=1.0,
            ),
        ),
    )
    return grpo_learner.GRPOLearner(
        cluster,
        grpo_learner.GRPOConfig(num_generations=samples, beta=0.0),
        _reward(new),
    )

  def train(self, rows: int, tokens: int) -> dict[str, float]:
    """One update on `rows` rows: forward, backward, AdamW."""
    prompt = tokens // 4
    cluster = self._learner(1, rows, prompt, tokens - prompt).rl_cluster
    shape = (rows, tokens - prompt)
    ids = self._draw.integers(0, self._config.vocab_size, (rows, tokens))
    example = common.TrainExample(
        prompt_ids=jnp.asarray(ids[:, :prompt]),
        prompt_mask=jnp.ones((rows, prompt), bool),
        completion_ids=jnp.asarray(ids[:, prompt:]),
        completion_mask=jnp.ones(shape, bool),
        advantages=jnp.asarray(self._draw.normal(size=rows)),
        ref_per_token_logps=None,
        old_per_token_logps=jnp.asarray(-5.0 * self._draw.random(shape)),
    )

    def update():
      cluster.update_actor([example], None)
      _wait_for(cluster)

    return {"seconds": turns.timed(update), "tokens": rows * tokens}

  def step(
      self, prompts: int, samples: int, prompt: int, new: int, **unused
  ) -> dict[str, float]:
    """A whole step: draw groups of responses, update."""
    del unused
    learner = self._learner(prompts, samples, prompt, new)

    def rounds(pace):
      while True:
        _wait_for(learner.rl_cluster)
        pace.pause()
        yield {"prompts": np.array(self._prompts(prompts, prompt))}

    if self._pace is None:
      self._pace = turns.Pace(lambda pace: learner.train(rounds(pace)))
    return {
        "seconds": turns.timed(self._pace.round),
        "tokens": prompts * samples * new,
    }


def _wait_for(cluster):
  """Waits until the last update is done."""
  jax.block_until_ready(grpo_learner.nnx.state(cluster.actor_trainer.model))


def _reward(new):
  """Rewards the share of odd ids, of responses of `new` tokens."""

  def share(completions, **unused):
    del unused
    ids = [[int(word) for word in text.split()] for text in completions]
    assert all(len(row) == new for row in ids)
    return [sum(token % 2 for token in row) / new for row in ids]

  return share


if __name__ == "__main__":
  worker = Worker(sys.argv[1], (sys.argv[2:] or ["bfloat16"])[0])
  turns.serve({
      "generate": worker.generate, "train": worker.train, "step": worker.step,
  })
