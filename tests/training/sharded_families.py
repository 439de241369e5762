"""Checks on eight devices; families_sharding_test.py runs it by itself.

Of every family, and of adapters beside frozen weights: loss and gradient over
a mesh are those of one device, and greedy sampling draws the same tokens. The
meshes are data, fsdp, tensor and all three; sharded_run.py has all of them for
one family.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import tiny_round
import tiny_run

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import lora as lora_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.rollout import generator
from jaxrl_llm.training import minibatch
from jaxrl_llm.training import trainer as trainer_lib

# Every axis of it divides by 8.
SIZES = dict(
    vocab_size=264,
    width=32,
    layers=2,
    heads=16,
    kv_heads=8,
    head_dim=4,
    mlp_width=64,
    tied_embeddings=False,
)
# A window that is shorter than the sequences.
WINDOW = dict(
    sliding_window=4,
    local_layers=config_lib.local_pattern(2, 2),
    score_divisor=4.0,
)
CONFIGS = {
    "qwen2": dict(family="qwen2"),
    "qwen3": dict(family="qwen3"),
    "gemma2": dict(
        family="gemma2", score_softcap=5.0, logit_softcap=3.0, **WINDOW
    ),
    "gemma3": dict(family="gemma3_text", local_rope_theta=100.0, **WINDOW),
}
POLICIES = {
    name: policy_lib.Policy(
        config_lib.ModelConfig(**SIZES, **fields), "float32", "none"
    )
    for name, fields in CONFIGS.items()
}
POLICIES["qwen2 int8"] = dataclasses.replace(
    POLICIES["qwen2"], lora=lora_lib.Lora(2, 4.0), base_dtype="int8"
)
# A mesh compiles for seconds, so each policy has one.
MIXED = "data=2,fsdp=2,tensor=2"
CASES = {
    "qwen2": "tensor=8",
    "qwen3": "fsdp=8",
    "gemma2": MIXED,
    "gemma3": "data=8",
    "qwen2 int8": MIXED,
}
SETTINGS = dataclasses.replace(tiny_run.SETTINGS, rows_per_microbatch=8)


def parameters(policy):
  """Random parameters, in which no bias or adapter is 0.

  They are drawn by numpy: drawing them under JAX compiles for as long as all
  the rest.
  """
  draw = np.random.default_rng(1)

  offset = policy.config.block.offset_norms

  def some(path, leaf):
    name = jax.tree_util.keystr(path[-1:], simple=True)
    middle = 1.0 if name.endswith("norm") and not offset else 0.0
    return jnp.asarray(middle + 0.3 * draw.normal(size=leaf.shape), jnp.float32)

  drawn = jax.tree_util.tree_map_with_path
  masters = drawn(some, policy.without_adapters().shapes)
  if policy.lora is None:
    return masters
  adapters = drawn(some, policy_lib.trained(policy.shapes))
  base = policy.freeze(masters, policy.base_dtype)
  return {lora_lib.ADAPTERS: adapters, lora_lib.BASE: base}


def placed(policy, params, mesh):
  places = sharding.shardings(mesh, policy.logical_axes, policy.shapes)
  return jax.device_put(params, places)


def totals(policy, params, mesh):
  """Loss and gradient of a mini-batch."""
  trainer = trainer_lib.build(
      policy, tiny_run.SPEC, SETTINGS, mesh=mesh, seed=0,
      reference_params=None,
  )
  rollouts = tiny_run.make_rollouts()
  draw = np.random.default_rng(0)
  # About what a model of random weights says of any token.
  logprobs = [
      (draw.normal(size=len(r.response_tokens)) / 10 - math.log(264)).astype(
          np.float32
      )
      for r in rollouts
  ]
  rollouts = [
      dataclasses.replace(rollout, behavior_logprobs=row)
      for rollout, row in zip(rollouts, logprobs)
  ]
  terms = {
      "advantages": list(draw.normal(size=len(rollouts)).astype(np.float32)),
      "proximal_logprobs": logprobs,
  }
  with jax.set_mesh(mesh):
    built = minibatch.build(trainer, rollouts, terms)
    return minibatch.accumulate(trainer, params, built, 0)


def tokens(policy, params, mesh):
  """Greedy responses."""
  found = generator.sample(
      policy,
      params,
      tiny_round.TOKENIZER,
      tiny_round.prompts()[:8],
      1,
      dataclasses.replace(
          tiny_round.SAMPLING, temperature=0.0, max_new_tokens=12
      ),
      dataclasses.replace(
          tiny_round.SETTINGS, prefill_rows=8, prompt_buckets=(40,)
      ),
      seed=11,
      mesh=mesh,
      progress=False,
  )
  return [answer.response.tokens for answers in found for answer in answers]


def check(name, single):
  policy = POLICIES[name]
  params = parameters(policy)
  alone = placed(policy, params, single)
  wanted = totals(policy, alone, single)
  drawn = tokens(policy, alone, single)
  # Greedy tokens that are all one token would be equal on any mesh.
  assert len({int(token) for row in drawn for token in row}) > 8, (name, drawn)
  mesh, where = sharding.make_mesh(CASES[name]), f"{name} {CASES[name]}"
  spread = placed(policy, params, mesh)
  found = totals(policy, spread, mesh)
  np.testing.assert_allclose(found.loss, wanted.loss, 1e-5, err_msg=where)
  pairs = zip(
      jax.tree_util.tree_leaves_with_path(found.grads),
      jax.tree.leaves(wanted.grads),
      strict=True,
  )
  for (path, left), right in pairs:
    left, right = np.asarray(left), np.asarray(right)
    gap = np.linalg.norm(left - right) / np.linalg.norm(right)
    assert gap <= 1e-5, (where, path, gap)
  got = tokens(policy, spread, mesh)
  for left, right in zip(got, drawn, strict=True):
    np.testing.assert_array_equal(left, right, where)


def main() -> None:
  assert jax.device_count() == 8
  for name in CASES:
    check(name, sharding.make_mesh("data=1"))
  print(f"{len(CASES)} policies")


if __name__ == "__main__":
  main()
