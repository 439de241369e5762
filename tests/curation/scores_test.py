"""Scores from one forward-mode pass are the reverse-mode inner products.

The tiny model, the trainer's own functions: every episode's loss is
differentiated backward on its own and multiplied with the direction.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scored
import tiny_run

from jaxrl_llm.curation import influence
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import packing
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import attribution
from jaxrl_llm.training import influence_steps
from jaxrl_llm.training import scoring

OBJECTIVES = {
    "ctpo": {"name": "ctpo", "correction": "none"},
    "gspo": {"name": "gspo", "correction": "none"},
    "cispo": {"name": "cispo", "correction": "tis"},
    "acpo_adaptive": {"name": "acpo_adaptive", "correction": "none"},
    "loglinear": {"name": "decoupled_ppo", "proximal": "loglinear"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return scored.write(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_forward_mode_is_reverse_mode(folder, name, monkeypatch):
  trainer, state, work, batch, prepared = scored.setting(
      folder, OBJECTIVES[name], influence.Influence()
  )
  state = scored.moved(state)
  direction = attribution.direction_of(trainer, state, work, batch, prepared)
  want = scored.reverse(trainer, state, work, batch, prepared, direction)
  assert np.ptp(np.sign(want)) == 2  # some help, some hurt
  scale = np.abs(want).max()
  found = attribution.scores(trainer, state, work, batch, prepared)
  np.testing.assert_allclose(found.episodes, want, rtol=1e-5, atol=1e-5 * scale)
  for total, row, position in zip(
      found.episodes, found.tokens, batch.positions
  ):
    assert row.shape == work.records[int(position)].response_tokens.shape
    np.testing.assert_allclose(row.sum(), total, rtol=1e-4, atol=1e-6)
  # Unpacked: a row per record.
  packed = packing.pack(*_lengths(work, batch), 32)
  assert max(map(len, packed)) > 1
  monkeypatch.setattr(
      packing, "pack", lambda lengths, *_: [[n] for n in range(len(lengths))]
  )
  alone = attribution.scores(trainer, state, work, batch, prepared)
  np.testing.assert_allclose(alone.episodes, want, rtol=1e-5, atol=1e-5 * scale)


def _lengths(work, batch):
  index, positions = work.index, batch.positions
  return (
      index.lengths[positions],
      index.response_lengths[positions],
      index.prompt_fingerprints[positions],
  )


def test_the_direction_is_the_validation_gradient(folder):
  """SFT: the token mean of the NLL over the records with a reward."""
  given = scored.setting(folder, OBJECTIVES["ctpo"], influence.Influence())
  trainer, state = given[:2]
  good = [r for r in trainer.validation if r.reward > 0]
  assert 0 < len(good) < len(trainer.validation)
  batch = packing.assemble(
      good, [[n] for n in range(len(good))], tokens_per_row=32
  )

  @jax.jit
  def loss(params):
    logprobs = tiny_run.POLICY.token_logprobs(
        params, batch.tokens, batch.segment_ids, batch.parent_ids,
        batch.positions, batch.temperatures,
    ).logprobs
    return -jnp.mean(logprobs, where=batch.terms.mask)

  want = influence.unit(jax.grad(loss)(state.params))
  found = attribution.direction_of(*given)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, want
  )


def test_other_validation_losses(folder):
  """A step along the batch's own policy gradient helps its episodes.

  Σ_i n_i ⟨∇L_i, v⟩ / Σ n_i is then |ḡ| > 0, since ḡ is the token mean at ratio
  1. The policy gradient of validation rollouts is another direction than SFT.
  """
  overrides = OBJECTIVES["ctpo"]
  own = scored.setting(
      folder, overrides, influence.Influence(validation="batch")
  )
  found = attribution.scores(*own).episodes
  work, batch = own[2:4]
  counts = work.index.trained_tokens[batch.positions]
  assert np.dot(found, counts) / counts.sum() > 1e-3
  directions = [
      attribution.direction_of(
          *scored.setting(
              folder, overrides, influence.Influence(validation=loss)
          )
      )
      for loss in ("sft", "policy_gradient")
  ]
  cosine = sum(
      float(jnp.vdot(a, b)) for a, b in zip(*map(jax.tree.leaves, directions))
  )
  assert abs(cosine) < 0.9


def test_preconditioning_uses_the_second_moments(folder):
  given = scored.setting(folder, OBJECTIVES["ctpo"], influence.Influence())
  trainer, state, *rest = given
  asked = dataclasses.replace(
      trainer, curation=influence.Influence(precondition=True)
  )
  plain = attribution.direction_of(*given)
  first = attribution.direction_of(asked, state, *rest)
  jax.tree.map(np.testing.assert_array_equal, plain, first)  # no moments yet
  adam = state.opt_state[1][0]._replace(
      count=jnp.int32(2),
      nu=jax.tree.map(lambda x: jnp.abs(x) + 1e-3, state.params),
  )
  opt_state = (state.opt_state[0], (adam, *state.opt_state[1][1:]))
  later = dataclasses.replace(state, opt_state=opt_state)
  found = attribution.direction_of(asked, later, *rest)
  scale = 1 - scored.SETTINGS.beta2**2
  want = influence.unit(
      jax.tree.map(
          lambda g, nu: g / (jnp.sqrt(nu / scale) + scored.SETTINGS.epsilon),
          plain,
          adam.nu,
      )
  )
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, want
  )


def test_lay_out_undoes_responses():
  rollouts = tiny_run.make_rollouts(groups=2)
  rows = packing.pack_rollouts(rollouts, 32)
  values = [
      n + np.arange(r.response_tokens.size) / 16 for n, r in enumerate(rollouts)
  ]
  index = indices.Index.of(rollouts)
  laid = scoring.lay_out(values, index, rows, (len(rows), 32))
  found = scoring.responses(laid, index, rows)
  for left, right in zip(found, values, strict=True):
    np.testing.assert_array_equal(left, right)


def test_every_product_forward_has_two_twins_of_bfloat16():
  """x W has the tangent ẋ W + x Ẇ: three products, none of them float32."""
  policy = dataclasses.replace(tiny_run.POLICY, compute_dtype="bfloat16")
  spec = algorithms.build(OBJECTIVES["ctpo"])
  rollouts = tiny_run.make_rollouts(groups=1)
  batch = packing.assemble(
      rollouts,
      [[n] for n in range(len(rollouts))],
      tokens_per_row=16,
      prepared={
          "advantages": [np.float32(1.0)] * len(rollouts),
          "proximal_logprobs": [r.behavior_logprobs for r in rollouts],
      },
  )
  losses = lambda params: influence_steps.contributions(
      policy, spec, params, batch, None
  )

  def products(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    return re.findall(
        r"dot_general .* : \(tensor<\S*x(\w+)>, tensor<\S*x(\w+)>\)"
        r" -> tensor<\S*x(\w+)>", text
    )

  params = tiny_run.params()
  primal = products(losses, params)
  both = products(
      lambda *trees: influence.scores(losses, *trees), params, params
  )
  assert primal and len(both) == 3 * len(primal)
  assert set(primal) == set(both) == {("bf16", "bf16", "f32")}
