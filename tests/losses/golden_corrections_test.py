"""Golden correction weights, and exact expectations by enumeration."""

import functools

import jax
import jax.numpy as jnp
import loss_batches
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import corrections
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import tokens as tokens_lib

CASES = loss_batches.CASES
PPO3 = {"name": "ppo", "dual_clip": 3.0}


def test_correction_weights():
  wanted = CASES["rollout_correction_weights"]
  build = lambda **k: algorithms.build({"name": "ppo", **k})
  with jax.enable_x64(True):
    batch = loss_batches.golden_terms()
    where = masked.layout(batch.mask, None, jnp.float64)
    logs = tokens_lib.log_weights(batch, where)
    mask = np.asarray(batch.mask)
    near = lambda found, key: loss_batches.near(found, wanted[key], mask)
    near(np.exp(logs), "w_token = pi_old/pi_rollout")
    tis = lambda **k: build(correction="tis", **k).weight(logs, where)
    near(tis(), "tis_token C=2")
    near(tis(correction_level="sequence"), "tis_seq C=2 (broadcast)")
    icepop = build(correction="icepop").weight(logs, where)
    near(icepop, "icepop [0.5,5] (zero outside, mask unchanged)")
    weights = tis()
    near(
        weights / corrections.mean_weight(weights, where, "token"),
        "tis_token_batch_normalised (w / masked mean(w), after truncation)",
    )
    for level, key in (
        ("sequence", "w_seq = prod_t w"),
        ("geometric", "w_geo = exp(mean log w)"),
    ):
      found = np.exp(corrections.at_level(logs, where, level))[:, 0]
      loss_batches.near(found, wanted[key])
    reject = lambda **k: np.asarray(
        build(correction="mis", **k).rejection.keeps(logs, where)
    )
    rejections = {
        "mis_token keep [0.5,2] (response_mask changed)": {},
        "mis_seq keep [0.5,2]": {"rejection_level": "sequence"},
        "mis_geo keep [0.99,1.01]": {
            "rejection_level": "geometric",
            "rejection_low": 0.99,
            "rejection_high": 1.01,
        },
        "rs_token_k1 intended: lo<=r<=hi, '0.6_1.4'": {
            "rejection_low": 0.6, "rejection_high": 1.4
        },
        "rs_token_k1 verl code: log lo <= -log r <= log hi, '0.6_1.4'": {
            "rejection_low": 0.6,
            "rejection_high": 1.4,
            "rejection_statistic": "k1_inverse",
        },
    }
    for key, overrides in rejections.items():
      found, want = reject(**overrides), np.array(wanted[key])
      want = want if want.ndim == 2 else want[:, None]
      np.testing.assert_array_equal(found, want & mask)


def test_rejections_keep_response_tokens_only():
  """Whatever the statistic; w = 1 everywhere passes all of them."""
  mask = jnp.array([[True, False, True]])
  where = masked.layout(mask, None, jnp.float32)
  for statistic in ("k1", "k1_inverse", "k2", "k3"):
    part = corrections.Rejection(rejection_statistic=statistic)
    found = part.keeps(jnp.zeros((1, 3)), where)
    np.testing.assert_array_equal(found, mask)


def test_normalized_correction_divides_the_loss_by_the_mean_weight():
  key = "tis_token_batch_normalised (w / masked mean(w), after truncation)"
  weights = CASES["rollout_correction_weights"][key]
  with jax.enable_x64(True):
    batch = loss_batches.golden_terms()
    run = loss_batches.loss_and_gradient
    plain = run(algorithms.build(PPO3), batch)[1]
    spec = {**PPO3, "correction": "tis", "correction_normalize": True}
    found = run(algorithms.build(spec), batch)[1]
    loss_batches.near(found, plain * np.array(weights))


def test_loglinear_proximal():
  wanted = CASES["areal_loglinear_prox"]
  inputs = loss_batches.GOLDEN["inputs"]
  mask = np.array(inputs["mask"])
  with jax.enable_x64(True):
    versions = jnp.full(mask.shape, wanted["v_behav"])
    found = tokens_lib.loglinear_proximal(
        jnp.asarray(inputs["logp_new"]),
        jnp.asarray(inputs["logp_rollout"]),
        jnp.asarray(wanted["v_theta"]),
        versions,
    )
    loss_batches.near(found, wanted["logp_prox"], mask)
    # The objective reads it as if it had been recomputed.
    batch = loss_batches.golden_terms(
        proximal_logprobs=np.where(mask, wanted["logp_prox"], np.nan)
    )
    recomputed = loss_batches.loss_and_gradient(
        algorithms.build({"name": "decoupled_ppo"}), batch
    )
    batch = loss_batches.golden_terms(
        versions=np.asarray(versions), proximal_logprobs=np.nan * mask
    )
    batch.controls["policy_version"] = jnp.asarray(float(wanted["v_theta"]))
    spec = {"name": "decoupled_ppo", "proximal": "loglinear"}
    loglinear = loss_batches.loss_and_gradient(algorithms.build(spec), batch)
    jax.tree.map(loss_batches.near, loglinear, recomputed)


def test_enumerated_gradients():
  """Σ_y μ(y) ∇[r A] against exact gradients of a two-token policy."""
  wanted = CASES["enumeration_unbiasedness"]
  theta = np.array(wanted["theta"])
  rewards = wanted["reward"]
  with jax.enable_x64(True):
    digits = np.array([[int(c) for c in word] for word in rewards])

    def logprobs(theta):
      logits = jnp.stack(
          [jnp.full(4, theta[0]), theta[1 + digits[:, 0]]], axis=1
      )
      return jax.nn.log_sigmoid(jnp.where(digits, logits, -logits))

    behavior = logprobs(jnp.asarray(wanted["behaviour"]))
    probability = np.exp(np.sum(behavior, axis=1, keepdims=True))
    outcome = np.array(list(rewards.values()))[:, None] * np.ones((1, 2))
    q = lambda policy: _action_values(np.exp(logprobs(policy)), digits, outcome)
    cases = {
        "full_sequence_ratio*R": ("sequence", outcome / 2),
        "cumulative*R": ("cumulative", outcome),
        "cumulative*Q_current": ("cumulative", q(jnp.asarray(theta))),
        "cumulative*Q_behav": (
            "cumulative", q(jnp.asarray(wanted["behaviour"]))
        ),
        "token_ratio*R": ("token", outcome),
        "gspo_geo_mean_ratio*R": ("sequence_mean", outcome),
    }
    weights = {"policy": jnp.asarray(probability * np.ones((1, 2)))}

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(spec, theta, signal):
      def gain(theta):
        batch = types.Terms(
            mask=jnp.ones((4, 2), bool),
            behavior_logprobs=behavior,
            logprobs=logprobs(theta),
            advantages=signal,
        )
        return -objective.apply(spec, batch, weights).loss

      return jax.grad(gain)(theta)

    for key, (ratio, signal) in cases.items():
      spec = algorithms.build({
          "name": "ppo", "anchor": "behavior", "ratio": ratio,
          "trust_region": "none", "aggregation": "token-sum",
      })
      found = gradient(spec, jnp.asarray(theta), jnp.asarray(signal))
      loss_batches.near(found, wanted[key], tolerance=2e-9)
    loss_batches.near(
        wanted["cumulative*Q_current"], wanted["exact_grad_J"], tolerance=1e-8
    )


def _action_values(probabilities, digits, outcome):
  """Q(s_t, y_t) of each enumerated response under a policy, [4, 2]."""
  values = np.array(outcome)
  for i, first in enumerate(digits[:, 0]):
    same = digits[:, 0] == first
    values[i, 0] = np.sum(probabilities[same, 1] * outcome[same, 1])
  return values
