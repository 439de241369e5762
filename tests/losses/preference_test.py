"""Dpo: pairs of a mini-batch, however its rows are laid out and split.

The oracle is the definition, −log σ(β (D_w − D_l)) over pairs that plain loops
find, differentiated as it stands.
"""

import dataclasses
import functools

import hypothesis as hp
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import loss_batches
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.losses import preference

GOLDEN = loss_batches.load("data.json")["golden"]["dpo"]
LONGEST, WIDTH, ROWS = 8, 16, 6


def _sequences(seed, groups, rewards):
  """Six ragged responses with tool tokens."""
  found = loss_batches.sequences(seed, longest=LONGEST)
  for sequence, group, reward in zip(found, groups, rewards, strict=True):
    ones = np.ones(len(sequence["mask"]))
    sequence["group_ids"] = np.full(len(ones), group)
    sequence["advantages"], sequence["weights"] = reward * ones, ones
  return found


def _pairs(groups, rewards, mode):
  """(chosen, rejected) by loops."""
  if mode == "all":
    return [
        (w, l)
        for w, group in enumerate(groups)
        for l, other in enumerate(groups)
        if group == other and rewards[w] > rewards[l]
    ]
  found = []
  for group in sorted(set(groups)):
    members = [n for n, other in enumerate(groups) if other == group]
    best = max(members, key=lambda n: (rewards[n], -n))
    worst = min(members, key=lambda n: (rewards[n], n))
    if rewards[best] > rewards[worst]:
      found.append((best, worst))
  return found


@jax.jit
def _definition(logprobs, reference, mask, over, beta, flipped):
  """(loss, margins [N, N], gradient [N, T]); over is 1 where i beats j."""

  def loss(logprobs):
    gaps = jnp.where(mask, logprobs - reference, 0.0).sum(axis=1)
    margins = beta * (gaps[:, None] - gaps)
    kept = (1 - flipped) * jax.nn.log_sigmoid(margins)
    turned = flipped * jax.nn.log_sigmoid(-margins)
    return -jnp.sum(over * (kept + turned)) / jnp.sum(over), margins

  (value, margins), gradient = jax.value_and_grad(loss, has_aux=True)(logprobs)
  return value, margins, gradient


def _by_definition(sequences, pairs, beta, flipped):
  """_definition of the sequences, one a row, padded on the right."""
  size = len(sequences)
  fields = {}
  for name in ("logprobs", "reference_logprobs", "mask"):
    padded = np.zeros((size, LONGEST), sequences[0][name].dtype)
    for row, sequence in zip(padded, sequences):
      row[: len(sequence[name])] = sequence[name]
    fields[name] = padded
  over = np.zeros((size, size))
  for chosen, rejected in pairs:
    over[chosen, rejected] = 1.0
  return over, *_definition(*fields.values(), over, beta, flipped)


@functools.cache
def _compiled(spec):
  def loss(logprobs, batch, weights, sums):
    live = dataclasses.replace(batch, logprobs=logprobs)
    output = objective.apply(spec, live, weights, sums)
    return output.loss, output.metrics

  return (
      jax.jit(functools.partial(objective.denominators, spec)),
      jax.jit(functools.partial(objective.statistics, spec)),
      jax.jit(jax.value_and_grad(loss, has_aux=True)),
  )


def _take(tree, rows):
  return jax.tree.map(lambda x: x[rows] if x.ndim == 2 else x, tree)


def _evaluate(spec, batch, pieces):
  """(loss, gradient, metrics) summed over micro-batches of whole rows."""
  find_weights, find_sums, value_and_grad = _compiled(spec)
  weights = find_weights(batch)
  parts = [
      (_take(batch, rows), _take(weights, rows))
      for rows in np.array_split(np.arange(ROWS), pieces)
  ]
  sums = [find_sums(part) for part, _ in parts]
  sums = jax.tree.map(lambda *x: sum(x), *sums)
  found = [value_and_grad(b.logprobs, b, w, sums) for b, w in parts]
  loss = sum(value for (value, _), _ in found)
  metrics = functools.reduce(
      types.merge_metrics, (metrics for (_, metrics), _ in found)
  )
  gradient = np.concatenate([gradient for _, gradient in found])
  return loss, gradient, types.finish_metrics(metrics)


def test_golden():
  """Log-probs of −12 and −15 over three tokens each, a tool token between."""
  with jax.enable_x64(True):
    spec = algorithms.build({"name": "dpo", "dpo_beta": GOLDEN["beta"]})
    spread = lambda total: [total / 6, np.nan, total / 3, total / 2]
    read = lambda *names: jnp.array([spread(GOLDEN[name]) for name in names])
    ids = jnp.broadcast_to(jnp.array([[0], [1]]), (2, 4))
    batch = types.Terms(
        mask=jnp.array([[True, False, True, True]] * 2),
        sequence_ids=ids,
        advantages=1.0 - ids,
        sequence_scores=jnp.array([1.0, 0.0]),
        sequence_groups=jnp.array([0, 0]),
        logprobs=read("logp_chosen", "logp_rejected"),
        reference_logprobs=read("ref_chosen", "ref_rejected"),
    )
    (loss, _), gradient = loss_batches.loss_and_gradient(spec, batch)
    found = loss_batches.full_output(spec, batch).metrics
    start = dataclasses.replace(batch, reference_logprobs=batch.logprobs)
    undecided = loss_batches.full_output(spec, start).metrics
  loss_batches.near(loss, GOLDEN["loss"])
  margin = GOLDEN["implicit_reward_chosen"] - GOLDEN["implicit_reward_rejected"]
  assert margin == pytest.approx(GOLDEN["logits"])
  found = types.finish_metrics(found)
  assert found["pair_margin"] == pytest.approx(margin, rel=1e-6)
  assert (found["pairs"], found["pair_accuracy"]) == (1, 1)
  undecided = types.finish_metrics(undecided)
  assert undecided["pair_margin"] == undecided["pair_accuracy"] == 0
  # −β σ(−0.15) on each token of the chosen, its negative on the rejected.
  slope = GOLDEN["beta"] * (1 - np.exp(-GOLDEN["loss"]))
  wanted = slope * np.array([[-1, 0, -1, -1], [1, 0, 1, 1]])
  loss_batches.near(gradient, wanted)


@pytest.mark.parametrize("mode,flipped", [
    ("all", 0.0), ("all", 0.2), ("best_worst", 0.0),
])
@hp.settings(deadline=None, max_examples=15)
@hp.given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    rewards=st.lists(
        st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=6, max_size=6
    ),
    order=st.permutations(range(ROWS)),
    packed=st.booleans(),
    garbage=st.sampled_from([0.0, np.nan, -np.inf]),
    pieces=st.sampled_from([1, 3, 6]),
)
def test_any_layout_gives_the_definition(
    mode, flipped, seed, groups, rewards, order, packed, garbage, pieces
):
  """Value, gradient and metrics, also where a pair is in two micro-batches."""
  spec = algorithms.build({
      "name": "dpo", "pairs": mode, "label_smoothing": flipped, "dpo_beta": 0.3
  })
  pairs = _pairs(groups, rewards, mode)
  hp.assume(pairs)
  with jax.enable_x64(True):
    sequences = _sequences(seed, groups, rewards)
    over, wanted, margins, slopes = _by_definition(
        sequences, pairs, 0.3, flipped
    )
    moved = [sequences[n] for n in order]
    rows = [moved[n : n + 2] for n in range(0, 6, 2)] if packed else [
        [s] for s in moved
    ]
    rows += [[]] * (ROWS - len(rows))
    batch = loss_batches.pack(spec, rows, WIDTH, garbage=garbage)
    loss, gradient, metrics = _evaluate(spec, batch, pieces)
  assert abs(float(loss) - float(wanted)) < 1e-9
  total = 0.0
  for number, sequence in enumerate(sequences):
    mine = gradient[np.asarray(batch.sequence_ids) == number]
    slope = np.asarray(slopes)[number, : len(sequence["mask"])]
    np.testing.assert_allclose(mine, slope, rtol=1e-9, atol=1e-12)
    total += np.abs(mine).sum()
  assert np.abs(gradient).sum() == pytest.approx(total)
  right = over * (np.asarray(margins) > 0)
  assert metrics["pairs"] == len(pairs)
  assert metrics["pair_accuracy"] == pytest.approx(right.sum() / len(pairs))
  assert metrics["pair_margin"] == pytest.approx(
      np.sum(over * np.asarray(margins)) / len(pairs), rel=1e-5, abs=1e-6
  )


@pytest.mark.parametrize("scores,groups,best_worst,wanted", [
    ([1, 0, 0, 1], [0, 0, 0, 0], False, {(0, 1), (0, 2), (3, 1), (3, 2)}),
    # Of equal ones the first record.
    ([1, 0, 0, 1], [0, 0, 0, 0], True, {(0, 1)}),
    ([0, 2, 1, 2, 0], [7, 7, 7, 7, 7], True, {(1, 0)}),
    ([1, 0, 0, 1], [0, 1, 0, 1], True, {(0, 2), (3, 1)}),
    ([1, 1], [0, 0], True, set()),
    ([1, 0], [0, 1], False, set()),
    # Beyond the sequences, or without a response token.
    ([1, 0, 9, 9], [0, 0, -1, -1], True, {(0, 1)}),
])
def test_who_is_chosen_over_whom(scores, groups, best_worst, wanted):
  found = preference.prefers(
      jnp.asarray(scores, float), jnp.asarray(groups), best_worst
  )
  assert set(zip(*np.nonzero(np.asarray(found)))) == wanted


@pytest.mark.parametrize("rewards", [[1.0] * 6, [1, 0, 1, 0, 1, 0]])
def test_a_mini_batch_without_a_pair_gives_zero(rewards):
  """Equal rewards, or each response in a group of its own."""
  groups = [0] * 6 if len(set(rewards)) == 1 else range(6)
  spec = algorithms.build({"name": "dpo"})
  rows = [[s] for s in _sequences(3, groups, rewards)]
  batch = loss_batches.pack(spec, rows, WIDTH, garbage=np.nan)
  loss, gradient, metrics = _evaluate(spec, batch, 2)
  assert float(loss) == metrics["pairs"] == 0 and not np.any(gradient)
  assert np.isnan(metrics["pair_margin"])


def test_a_response_without_a_token_is_in_no_pair():
  """All of it tool tokens: the rest is as if it were not there."""
  spec = algorithms.build({"name": "dpo"})
  with jax.enable_x64(True):
    sequences = _sequences(5, [0] * 6, [1, 0, 1, 0, 1, 0])
    sequences[0]["mask"][:] = False
    pack = lambda chosen: loss_batches.pack(
        spec, [[s] for s in chosen] + [[]] * (6 - len(chosen)), WIDTH
    )
    whole = _evaluate(spec, pack(sequences), 3)
    rest = _evaluate(spec, pack(sequences[1:]), 3)
  assert float(whole[0]) == pytest.approx(float(rest[0]), rel=1e-12)
  np.testing.assert_allclose(whole[1][1:], rest[1][:5], rtol=1e-12)
  assert whole[2]["pairs"] == 6


def test_no_log_ratio_is_clamped():
  """A token 30 nats apart counts in full, in value and gradient."""
  spec = algorithms.build({"name": "dpo"})
  with jax.enable_x64(True):
    sequences = _sequences(7, [0, 0, 1, 1, 2, 2], [1, 0] * 3)
    sequences[0]["logprobs"][sequences[0]["mask"]] -= 30.0
    batch = loss_batches.pack(spec, [[s] for s in sequences], WIDTH)
    loss, gradient, _ = _evaluate(spec, batch, 1)
    pairs = [(0, 1), (2, 3), (4, 5)]
    _, wanted, _, slopes = _by_definition(sequences, pairs, 0.1, 0.0)
  assert float(loss) == pytest.approx(float(wanted), rel=1e-12)
  length = len(sequences[0]["mask"])
  np.testing.assert_allclose(
      gradient[0, :length], slopes[0, :length], rtol=1e-9
  )
  assert np.max(np.abs(gradient[0])) > 0.02


def test_describe_says_the_pairs_and_the_loss():
  text = objective.describe(algorithms.build({
      "name": "dpo", "pairs": "best_worst", "label_smoothing": 0.1,
      "dpo_beta": 0.25,
  }))
  for phrase in (
      "−(1 − 0.1) log σ(z) − 0.1 log σ(−z), z = 0.25 (D_w − D_l)",
      "the highest and the lowest R of a group", "frozen; train.reference",
      "none in the loss",
  ):
    assert phrase in text
  plain = objective.describe(algorithms.build({"name": "dpo"}))
  assert "(1/P) Σ_(w,l) −log σ(z), z = 0.1" in plain
  assert "all (w, l) of a group with R_w > R_l" in plain
