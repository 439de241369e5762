"""Checks on eight devices; sharding_test.py runs it in its own process.

The engine over data, fsdp, tensor and all three draws the tokens of one
device: greedily, and with the same noise under truncation.
"""

import dataclasses

import jax
import numpy as np
import tiny_round

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.rollout import engine
from jaxrl_llm.rollout import generator

# Every axis of it divides by 8.
MODEL = config_lib.ModelConfig(
    vocab_size=264,
    width=32,
    layers=2,
    heads=16,
    kv_heads=8,
    head_dim=4,
    mlp_width=64,
)
POLICY = policy_lib.Policy(MODEL, "float32")
# 30 responses refill 8 slots; not all meshes spread 4 rows of prompts.
SETTINGS = dataclasses.replace(
    tiny_round.SETTINGS, prefill_rows=4, prompt_buckets=(40,)
)
MESHES = ("data=8", "fsdp=8", "tensor=8", "data=2,fsdp=2,tensor=2")


def sample(mesh, temperature):
  params = jax.jit(POLICY.init)(jax.random.key(3))
  places = sharding.shardings(mesh, POLICY.logical_axes, POLICY.shapes)
  return generator.sample(
      POLICY,
      jax.device_put(params, places),
      tiny_round.TOKENIZER,
      tiny_round.prompts(),
      3,
      dataclasses.replace(
          tiny_round.SAMPLING, temperature=temperature, max_new_tokens=12
      ),
      SETTINGS,
      seed=11,
      mesh=mesh,
      progress=False,
  )


def responses(mesh, temperature):
  found = sample(mesh, temperature)
  return [answer.response for answers in found for answer in answers]


def check_tokens():
  single = sharding.make_mesh("data=1")
  for temperature in (0.0, 1.0):
    want = responses(single, temperature)
    assert len(want) == 30
    for text in MESHES:
      got = responses(sharding.make_mesh(text), temperature)
      for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens, text)
        for name in ("logprobs", "log_kept_mass", "topk_logprobs"):
          np.testing.assert_allclose(
              getattr(ours, name), getattr(theirs, name),
              rtol=1e-5, atol=1e-5, err_msg=f"{text} {name}",
          )


def check_places():
  """No device holds the whole of the cache, of weights if they are spread."""
  mesh = sharding.make_mesh("data=2,fsdp=2,tensor=2")
  params = jax.jit(POLICY.init)(jax.random.key(3))
  places = sharding.shardings(mesh, POLICY.logical_axes, POLICY.shapes)
  params = jax.device_put(params, places)
  for spread, width in ((True, 16), (False, 32)):
    shapes = dataclasses.replace(SETTINGS, spread_weights=spread).shapes
    made = engine.Engine(
        POLICY, params, (), tiny_round.SAMPLING, shapes, mesh=mesh
    )
    query = made._weights["parts"][0]["query"]
    assert query.shape == (1, 64, 32)
    assert query.addressable_shards[0].data.shape == (1, 32, width)
  state = made._call(
      engine.slots_lib.empty, POLICY, made._weights, SETTINGS.slots, 64
  )
  keys = state.cache.keys[0]
  assert keys.shape == (1, 8, 8, 4, 64)
  assert keys.addressable_shards[0].data.shape == (1, 2, 4, 4, 64)


def check_refusal():
  mesh = sharding.make_mesh("data=8")
  shapes = dataclasses.replace(SETTINGS, slots=12).shapes
  params = jax.jit(POLICY.init)(jax.random.key(3))
  try:
    engine.Engine(POLICY, params, (), tiny_round.SAMPLING, shapes, mesh=mesh)
    raise AssertionError("12 slots cannot lie on 8 rows")
  except ValueError as error:
    assert "generation.slots" in str(error) and "16" in str(error), error


def main() -> None:
  assert jax.device_count() == 8
  check_refusal()
  check_places()
  check_tokens()
  print(f"{len(MESHES)} meshes")


if __name__ == "__main__":
  main()
