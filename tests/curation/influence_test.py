"""Influence: the filter, and scores of a model small enough for a table."""

import curation_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.curation import influence

GOLDEN = curation_cases.GOLDEN


def test_filter_of_the_golden_case():
  case = GOLDEN["ippo_filter"]
  weights = influence.survivor_weights(np.array(case["scores"]))
  np.testing.assert_allclose(weights, case["weights"], rtol=1e-12)
  mean = weights @ np.array(case["episode_grads"]) / np.sum(weights > 0)
  np.testing.assert_allclose(mean, case["filtered_mean_grad"], rtol=1e-12)
  none = np.array(case["edge_all_dropped"]["scores"])
  np.testing.assert_array_equal(influence.survivor_weights(none), 0)


def test_filter_at_its_edges():
  np.testing.assert_array_equal(
      influence.survivor_weights(np.array([np.nan, -1, 7, np.inf])),
      [0, 0, 1, 0],
  )
  kept = influence.survivor_weights(np.array([3.0, 0.0, 1.0]), reweight=False)
  np.testing.assert_array_equal(kept, [1, 0, 1])


def tabular_losses(case):
  """Episode losses of the golden: a table of logits, PPO with clip 0.2."""
  low, high = 1 - case["eps_clip"], 1 + case["eps_clip"]

  def losses(table):
    logprobs = jax.nn.log_softmax(table, axis=-1)
    found = []
    for episode, old in zip(case["episodes"], case["old_logps"]):
      prev, after = np.array(episode["prev"]), np.array(episode["nxt"])
      advantages = jnp.array(episode["adv"])
      ratios = jnp.exp(logprobs[prev, after] - jnp.array(old))
      clipped = jnp.where(
          ratios > high, high, jnp.where(ratios < low, low, ratios)
      )
      terms = jnp.minimum(ratios * advantages, clipped * advantages)
      found.append(-terms.mean())
    return jnp.stack(found)

  return losses


def test_scores_of_the_golden_table():
  case = GOLDEN["ippo_tabular_lm"]
  with jax.enable_x64(True):
    losses = tabular_losses(case)
    table, direction = jnp.array(case["W"]), jnp.array(case["val_grad"])
    np.testing.assert_allclose(losses(table), case["losses"], rtol=1e-9)
    found = influence.scores(losses, table, direction)
    np.testing.assert_allclose(found, case["scores"], rtol=1e-9)
    weights = influence.survivor_weights(np.asarray(found))
    np.testing.assert_allclose(weights, case["weights"], rtol=1e-9)
    # The length of the direction changes no weight.
    found = influence.scores(losses, table, influence.unit(direction))
    weights = influence.survivor_weights(np.asarray(found))
    np.testing.assert_allclose(weights, case["weights"], rtol=1e-9)


def test_unit_and_precondition():
  tree = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
  found = influence.unit(tree)
  np.testing.assert_allclose(found["a"], [0.6, 0])
  np.testing.assert_allclose(found["b"], [[0.8]])
  zeros = jax.tree.map(jnp.zeros_like, tree)
  np.testing.assert_array_equal(influence.unit(zeros)["a"], 0)
  moments = {"a": jnp.array([9.0, 1.0]), "b": jnp.array([[4.0]])}
  found = influence.precondition(tree, moments, 1.0)
  np.testing.assert_allclose(found["a"], [0.75, 0])
  np.testing.assert_allclose(found["b"], [[4 / 3]])


@pytest.mark.parametrize("limit, stopped", [(None, False), (0.5, False),
                                            (0.6, True)])
def test_stop_acts_on_the_share_of_survivors(limit, stopped):
  step = influence.Influence(stop_share=limit)
  scores = np.array([1.0, -1.0, 2.0, 0.0])
  batch = curation_cases.make(np.zeros(4), scores=scores)
  assert step.stops(scores) == stopped
  weights = curation_cases.of_episodes(step(batch))
  wanted = [0] * 4 if stopped else [2 / 3, 0, 4 / 3, 0]
  np.testing.assert_allclose(weights, wanted)
