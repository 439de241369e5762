"""What the configuration says of a critic, and what of it is refused."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.verbs import critics
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import parts

TINY = f"--config={pathlib.Path(__file__).parents[2] / 'configs/tiny.py'}"
GAE = "--config.objective.advantage=gae"


def config_of(*words):
  return flags.parse("train", [TINY, *words])[0]


@pytest.fixture(scope="module")
def model():
  config = config_of(GAE)
  return parts.model(config, parts.tokenizer(config))


def write(folder, policy, seed, vocab_size):
  """Writes a random model; returns its parameters."""
  config = dataclasses.replace(policy.config, vocab_size=vocab_size)
  made = dataclasses.replace(policy, config=config)
  params = made.init(jax.random.key(seed))
  policy_lib.save(folder, made, params, {"tokenizer.json": b"{}"})
  return params


def test_an_objective_without_a_critic_gets_none(model):
  assert critics.build(config_of(), model.policy) is None


def test_a_critic_starts_from_the_policy_unless_said(model):
  config = config_of(GAE, "--config.critic.epochs=3")
  critic = critics.build(config, model.policy)
  assert critic.network == model.policy and critic.training.epochs == 3
  assert critics.trunk(config, model) is model.start_params


def test_a_critic_starts_from_the_model_of_its_path(model, tmp_path):
  size = model.policy.config.vocab_size + 8
  params = write(tmp_path / "other", model.policy, 7, size)
  config = config_of(GAE, f"--config.critic.path={tmp_path / 'other'}")
  critic = critics.build(config, model.policy)
  assert critic.network.config.vocab_size == size
  assert critic.network.compute_dtype == model.policy.compute_dtype
  trunk = critics.trunk(config, model)
  for found, wanted in zip(
      jax.tree.leaves(trunk), jax.tree.leaves(params), strict=True
  ):
    np.testing.assert_array_equal(found, wanted)
  assert jax.tree.map(np.shape, critic.shapes["trunk"]) == jax.tree.map(
      np.shape, trunk
  )


def test_a_path_without_a_fitting_model_is_refused(model, tmp_path):
  path = f"--config.critic.path={tmp_path / 'small'}"
  with pytest.raises(FileNotFoundError, match="critic.path: there is nothing"):
    critics.build(config_of(GAE, path), model.policy)
  write(tmp_path / "small", model.policy, 0, 259)
  with pytest.raises(ValueError, match="critic.path: .* ids, found 259;"):
    critics.build(config_of(GAE, path), model.policy)


@pytest.mark.parametrize(
    "words, message",
    [
        (("--config.critic.epochs=2",), "critic.epochs: ctpo has no critic"),
        ((GAE, "--config.critic.epochs=0"), "critic.epochs: expected at least"),
    ],
    ids=["idle", "wrong"],
)
def test_keys_that_do_not_fit_are_refused(words, message):
  with pytest.raises(ValueError, match=message):
    parts.critic_settings(config_of(*words))
