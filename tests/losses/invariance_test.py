"""Layout, splitting and garbage change nothing; the first step is −A ∇log π.

Ragged sequences are evaluated as one row each, many rows at once, packed,
padded on either side, shuffled, and with NaN or −inf where masked.
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
from jaxrl_llm.losses import masked
from jaxrl_llm.losses import objective

LONGEST, WIDTH, ROWS = 8, 16, 6
# Extra terms and parts ride on some of the algorithms.
EXTRAS = {
    "ppo": {"correction": "tis+rejection", "correction_normalize": True},
    "grpo": {"kl_coefficient": 0.1, "entropy_coefficient": 0.01},
    "gspo": {"correction": "icepop", "correction_level": "sequence"},
    "ctpo": {"correction": "rejection", "rejection_level": "geometric"},
    "cppo_prefix": {"budget": "dynamic", "divergence": "topk_tv",
                    "divergence_topk": 4},
}
MIXED = {
    "mixed": {
        "name": "ctpo", "ratio": "cumulative", "trust_region": "prefix_budget"
    },
    "gspo+sis": {"name": "gspo", "selection": "sis", "selection_topk": 4},
}
NAMES = [*algorithms.REGISTRY, *MIXED]


def _spec(name):
  if name in MIXED:
    return algorithms.build(MIXED[name])
  return algorithms.build(
      loss_batches.overrides(name) | EXTRAS.get(name, {})
  )


@functools.cache
def _compiled(spec):
  """Denominators, statistics and loss of a micro-batch, jitted."""

  def loss(logprobs, batch, weights, sums):
    live = dataclasses.replace(batch, logprobs=logprobs)
    output = objective.apply(spec, live, weights, sums)
    return output.loss, output

  return (
      jax.jit(functools.partial(objective.denominators, spec)),
      jax.jit(functools.partial(objective.statistics, spec)),
      jax.jit(jax.value_and_grad(loss, has_aux=True)),
  )


def _pack(spec, rows, **layout):
  """Terms [ROWS, WIDTH]; empty rows fill."""
  rows = rows + [[]] * (ROWS - len(rows))
  key = jax.random.key(7)
  return loss_batches.pack(spec, rows, WIDTH, key=key, **layout)


def _evaluate(spec, batch, pieces=1, cut=False):
  """(loss, gradient [ROWS, WIDTH], metric sums) of a mini-batch.

  Args:
    spec: the objective.
    batch: Terms [ROWS, WIDTH].
    pieces: micro-batches.
    cut: whether a micro-batch has only its own rows; else empty rows fill it
      to the full shape, which needs no other compilation.
  """
  find_weights, find_sums, value_and_grad = _compiled(spec)
  weights = find_weights(batch)
  micro_batches = []
  for rows in np.array_split(np.arange(ROWS), pieces):
    if cut:
      micro_batches.append((_take(batch, rows), _take(weights, rows)))
      continue
    mine = jnp.isin(jnp.arange(ROWS), rows)[:, None]
    piece = dataclasses.replace(batch, mask=batch.mask & mine)
    own = {name: jnp.where(mine, w, 0.0) for name, w in weights.items()}
    micro_batches.append((piece, own))
  sums = None
  if objective.requirements(spec).statistics:
    parts = [find_sums(piece) for piece, _ in micro_batches]
    sums = jax.tree.map(lambda *x: sum(x), *parts)
  total, gradients, metrics = 0.0, [], None
  for piece, own in micro_batches:
    (value, output), gradient = value_and_grad(
        piece.logprobs, piece, own, sums
    )
    total += value
    gradients.append(np.asarray(gradient))
    metrics = output.metrics if metrics is None else types.merge_metrics(
        metrics, output.metrics
    )
  gradient = np.concatenate(gradients) if cut else sum(gradients)
  return total, gradient, types.finish_metrics(metrics)


def _take(tree, rows):
  return jax.tree.map(lambda x: x if _is_key(x) else x[rows], tree)


def _is_key(x):
  return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _assert_same(batch, found, wanted_batch, wanted, tolerance):
  """‖Δ‖ / ‖g‖ of the gradients by sequence; losses and metrics agree."""
  norm = np.linalg.norm(wanted[1])
  assert norm > 0
  assert not np.any(found[1][~np.asarray(batch.mask)])
  by_token = lambda batch, g: g[_order(batch)]
  gap = by_token(batch, found[1]) - by_token(wanted_batch, wanted[1])
  assert np.linalg.norm(gap) / norm < tolerance
  scale = max(abs(float(wanted[0])), norm)
  assert abs(float(found[0]) - float(wanted[0])) / scale < tolerance
  for key, value in wanted[2].items():
    np.testing.assert_allclose(
        found[2][key], value, rtol=2e-5, atol=1e-6, err_msg=key
    )


def _order(batch):
  """Index of the tokens by sequence, then by position."""
  ids = np.asarray(batch.sequence_ids)
  rows, columns = np.nonzero(ids >= 0)
  order = np.lexsort((columns, ids[rows, columns]))
  return rows[order], columns[order]


def _pairs(sequences):
  return [sequences[i : i + 2] for i in range(0, len(sequences), 2)]


@pytest.mark.parametrize("name", NAMES)
def test_layout_splitting_and_garbage_change_nothing(name):
  spec = _spec(name)
  with jax.enable_x64(True):
    sequences = loss_batches.sequences(3, longest=LONGEST)
    alone = [[s] for s in sequences]
    shuffled = [alone[i] for i in [4, 2, 0, 5, 1, 3]]
    variants = {
        "one row at a time": (alone, 6, {}),
        "shuffled": (shuffled, 1, {}),
        "NaN where masked": (alone, 1, {"garbage": np.nan}),
        "-inf where masked": (alone, 1, {"garbage": -np.inf}),
        "padded left": (alone, 1, {"left": WIDTH - LONGEST}),
        "packed": (_pairs(sequences), 1, {"garbage": np.nan}),
        "packed, one row at a time": (_pairs(sequences), 6, {}),
    }
    batch = _pack(spec, alone)
    wanted = _evaluate(spec, batch)
    for variant, (rows, pieces, layout) in variants.items():
      other = _pack(spec, rows, **layout)
      found = _evaluate(spec, other, pieces)
      try:
        _assert_same(other, found, batch, wanted, 1e-10)
      except AssertionError as error:
        raise AssertionError(f"{name}: {variant}: {error}") from error


@pytest.mark.parametrize("name", NAMES)
@hp.settings(deadline=None, max_examples=5)
@hp.given(
    seed=st.integers(0, 2**32 - 1),
    order=st.permutations(range(ROWS)),
    packed=st.booleans(),
    left=st.integers(0, WIDTH - LONGEST),
    garbage=st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e30]),
    pieces=st.integers(1, ROWS),
)
def test_a_drawn_layout_changes_nothing(
    name, seed, order, packed, left, garbage, pieces
):
  spec = _spec(name)
  with jax.enable_x64(True):
    sequences = loss_batches.sequences(seed, longest=LONGEST)
    batch = _pack(spec, [[s] for s in sequences])
    wanted = _evaluate(spec, batch)
    hp.assume(np.linalg.norm(wanted[1]) > 0)
    moved = [sequences[i] for i in order]
    rows = _pairs(moved) if packed else [[s] for s in moved]
    layout = {"garbage": garbage} if packed else {
        "garbage": garbage, "left": left
    }
    other = _pack(spec, rows, **layout)
    found = _evaluate(spec, other, pieces)
    _assert_same(other, found, batch, wanted, 1e-10)


@pytest.mark.parametrize("name", ["ctpo", "gspo", "acpo_adaptive", "sis"])
def test_micro_batches_of_one_row(name):
  """1 × B equals B × 1 in shape too, not only with empty rows."""
  spec = _spec(name)
  with jax.enable_x64(True):
    batch = _pack(spec, [[s] for s in loss_batches.sequences(23)])
    found = _evaluate(spec, batch, ROWS, cut=True)
    _assert_same(batch, found, batch, _evaluate(spec, batch), 1e-10)


@pytest.mark.parametrize("name", ["ctpo", "cppo_prefix", "gspo"])
def test_float32_layouts_agree(name):
  spec = algorithms.build(loss_batches.overrides(name))
  sequences = loss_batches.sequences(5, longest=LONGEST)
  with jax.enable_x64(False):
    batch = _pack(spec, [[s] for s in sequences])
    packed = _pack(spec, _pairs(sequences), garbage=np.nan)
    found = _evaluate(spec, packed, 6)
    _assert_same(packed, found, batch, _evaluate(spec, batch), 1e-5)


def _net_wins(sequences):
  """(Pairs won − pairs lost) / pairs, of each sequence."""
  of = lambda name: np.array([s[name][0] for s in sequences])
  scores, groups = of("advantages"), of("group_ids")
  over = (groups[:, None] == groups) & (scores[:, None] > scores)
  return (over.sum(axis=1) - over.sum(axis=0)) / over.sum()


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_first_step_identity(name):
  """live = proximal = behavior: gradient −A × aggregation weight.

  Without added terms: vapo has the NLL of what was rewarded.
  """
  spec = _spec(name)
  plain = dataclasses.replace(spec.regularizers, positive_coefficient=0.0)
  spec = dataclasses.replace(spec, regularizers=plain)
  with jax.enable_x64(True):
    sequences = loss_batches.sequences(11, longest=LONGEST, drift=0.0)
    for sequence in sequences:
      # Token advantages where the objective takes them; some are large.
      scale = np.ones_like(sequence["advantages"])
      if not spec.ratio.shared:
        scale[: len(scale) // 2] = 3.5
      sequence["advantages"] = 2.0 * scale * np.sign(sequence["advantages"])
    batch = _pack(spec, _pairs(sequences))
    _, gradient, _ = _evaluate(spec, batch)
    where = masked.layout(batch.mask, batch.segment_ids, jnp.float64)
    if spec.selects:
      where = masked.restrict(where, batch.advantages > 0)
    weights = spec.aggregation.weights(where)
    weights = weights * jnp.where(batch.mask, batch.weights, 0.0)
    wanted = -jnp.where(batch.mask, batch.advantages, 0.0) * weights
    if name == "acpo_advantage":
      wanted = jnp.where(jnp.abs(batch.advantages) > 3.0, 0.0, wanted)
      assert np.any(wanted != 0)
    if spec.surrogate.pairwise:
      # −log σ(z) has the slope −½ at z = 0.
      pulls = 0.5 * spec.surrogate.dpo_beta * _net_wins(sequences)
      wanted = -jnp.where(batch.mask, pulls[batch.sequence_ids], 0.0)
      wanted = wanted * weights
      assert np.any(wanted != 0)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-12, atol=1e-14)


# These read probabilities, not only ratios.
SHIFT_DEPENDENT = {"cppo_prefix", "dppo_divergence", "acpo_adaptive", "mixed"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in SHIFT_DEPENDENT])
def test_a_constant_on_all_log_probs_cancels(name):
  spec = _spec(name)
  with jax.enable_x64(True):
    rows = [[s] for s in loss_batches.sequences(13, longest=LONGEST)]
    batch = _pack(spec, rows)
    fields = [
        f.name
        for f in dataclasses.fields(batch)
        if "logprobs" in f.name and getattr(batch, f.name) is not None
    ]
    moved = dataclasses.replace(
        batch, **{f: getattr(batch, f) - 2.0 for f in fields}
    )
    wanted, found = _evaluate(spec, batch)[1], _evaluate(spec, moved)[1]
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@hp.settings(deadline=None, max_examples=5)
@hp.given(seed=st.integers(0, 2**32 - 1))
def test_extreme_log_ratios_give_finite_gradients(name, seed):
  """±1e4 nats on any token, −inf among the top-K and where masked."""
  spec = _spec(name)
  rows = [[s] for s in loss_batches.sequences(seed, longest=LONGEST)]
  with jax.enable_x64(True):
    batch = _pack(spec, rows, garbage=-np.inf)
    rng = np.random.default_rng(seed)
    jumps = rng.choice([-1e4, -50.0, 0.0, 50.0, 1e4], batch.mask.shape)
    batch = dataclasses.replace(batch, logprobs=batch.logprobs + jumps)
    if batch.topk_logprobs is not None:
      impossible = batch.topk_logprobs.at[..., -1].set(-jnp.inf)
      batch = dataclasses.replace(batch, topk_logprobs=impossible)
    loss, gradient, _ = _evaluate(spec, batch)
    assert np.isfinite(loss)
    assert np.all(np.isfinite(gradient))
