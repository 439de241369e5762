"""Golden divergences and selection, which see top-K log-probs."""

import functools

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import divergences
from jaxrl_llm.losses import ratios
from jaxrl_llm.losses import tokens as tokens_lib

CASES = loss_batches.CASES


def test_divergences_over_the_top_k():
  wanted = CASES["dppo_topk_divergence"]
  keys = {
      ("topk_tv", "union"): ("paper_topK_union_sampled", "tv"),
      ("topk_kl", "union"): ("paper_topK_union_sampled", "kl"),
      ("topk_tv", "replace"): ("code_sampled_replaces_last", "tv"),
      ("topk_kl", "replace"): ("code_sampled_replaces_last", "kl"),
      ("binary_tv", "union"): ("binary_tv",),
      ("binary_kl", "union"): ("binary_kl",),
  }
  with jax.enable_x64(True):
    behavior, live = (
        np.log(np.array([wanted[k]])) for k in ("mu", "pi")
    )
    tokens = np.array([wanted["sampled"]])
    batch = _distribution_terms(behavior, live, tokens, "behavior", 3)
    measure = jax.jit(
        lambda spec, batch: spec.trust_region.divergences(
            tokens_lib.view(spec, batch)
        ),
        static_argnums=0,
    )
    for (kind, add), path in keys.items():
      overrides = {"name": "dppo_divergence", "divergence": kind}
      if kind.startswith("topk"):
        overrides |= {"divergence_topk": 3, "topk_add": add}
      spec = algorithms.build(overrides)
      found = measure(spec, batch)
      for t, position in enumerate(wanted["positions"]):
        value = position
        for key in path:
          value = value[key]
        loss_batches.near(found[0, t], value)
    everything = divergences.total_variation(behavior, live)[0]
    loss_batches.near(everything, [p["exact_tv"] for p in wanted["positions"]])
    everything = divergences.kullback_leibler(behavior, live)[0]
    loss_batches.near(
        everything, [p["exact_kl_mu_pi"] for p in wanted["positions"]]
    )


def _distribution_terms(anchor, live, tokens, role, topk, advantages=None):
  ids = np.argsort(-anchor, -1, kind="stable")[..., :topk]
  pick = lambda p: np.take_along_axis(p, tokens[..., None], -1)[..., 0]
  shape = tokens.shape
  if advantages is None:
    advantages = np.ones(shape)
  return types.Terms(
      mask=jnp.ones(shape, bool),
      tokens=jnp.asarray(tokens, jnp.int32),
      advantages=jnp.asarray(advantages),
      logprobs=jnp.asarray(pick(live)),
      topk_ids=jnp.asarray(ids, jnp.int32),
      topk_anchor_logprobs=jnp.asarray(np.take_along_axis(anchor, ids, -1)),
      topk_logprobs=jnp.asarray(np.take_along_axis(live, ids, -1)),
      record_ids=jnp.zeros(shape, jnp.uint32),
      response_positions=jnp.zeros(shape, jnp.int32),
      key=jax.random.key(0),
      **{f"{role}_logprobs": jnp.asarray(pick(anchor))},
  )


def _ratio_logs(spec):
  """A fresh compilation, so that a patched source of noise is seen."""
  return jax.jit(
      lambda batch: tokens_lib.ratio_logs(spec, tokens_lib.view(spec, batch))
  )


SIS = {
    "official_code(no membership test)": {"selection_topk": 3},
    "membership_test_variant": {
        "selection_topk": 3, "require_membership": True
    },
    "full_vocab_envelope": {"selection_topk": 6},
}


@pytest.mark.parametrize("variant", SIS)
def test_sis(variant, monkeypatch):
  wanted = CASES["sis"]
  with jax.enable_x64(True):
    drawn = jnp.asarray([wanted["uniform"]])
    monkeypatch.setattr(ratios, "uniforms", lambda _: drawn)
    anchor, live = (
        np.log(np.array([wanted[k]])) for k in ("p_old", "p_new")
    )
    batch = _distribution_terms(
        anchor, live, np.array([wanted["token"]]), "proximal",
        SIS[variant]["selection_topk"], np.array([wanted["adv"]]),
    )
    host = {"name": "ppo", "selection": "sis", **SIS[variant]}
    spec = algorithms.build(host)
    want = wanted[variant]
    logs, accepted = _ratio_logs(spec)(batch)
    assert accepted[0].tolist() == want["accept"]
    loss_batches.near(np.exp(logs)[0], want["sis_ratio"])
    run = lambda spec: jax.jit(
        functools.partial(loss_batches.loss_and_gradient.__wrapped__, spec)
    )(batch)
    (loss, losses), gradient = run(spec)
    loss_batches.near(losses[0], want["loss_tok(ppo clip .2)"])
    loss_batches.near(loss, want["loss(token-mean)"])
    loss_batches.near(gradient[0], want["grad(token-mean)"])
    spec = algorithms.build(host | {"trust_region": "none"})
    (loss, _), gradient = run(spec)
    loss_batches.near(loss, want["loss(no clip)"])
    loss_batches.near(gradient[0], want["grad(no clip)"])


def test_sis_over_gspo(monkeypatch):
  """The sequence mean runs over rejected tokens only."""
  wanted = CASES["sis"]
  with jax.enable_x64(True):
    drawn = jnp.asarray([wanted["uniform"]])
    monkeypatch.setattr(ratios, "uniforms", lambda _: drawn)
    anchor, live = (
        np.log(np.array([wanted[k]])) for k in ("p_old", "p_new")
    )
    batch = _distribution_terms(
        anchor, live, np.array([wanted["token"]]), "proximal", 3
    )
    spec = algorithms.build(
        {"name": "gspo", "selection": "sis", "selection_topk": 3}
    )
    logs, accepted = _ratio_logs(spec)(batch)
    want = wanted["gspo_sis (official code)"]
    assert int(np.sum(~accepted)) == want["n_rejected"]
    loss_batches.near(
        np.exp(logs[0]),
        np.where(
            accepted[0],
            want["seq_ratio_over_accepted"],
            want["seq_ratio_over_rejected"],
        ),
    )
    plain = algorithms.build({"name": "gspo"})
    logs, _ = _ratio_logs(plain)(batch)
    loss_batches.near(np.exp(logs[0, 0]), want["seq_ratio_plain_gspo"])
