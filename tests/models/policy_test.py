"""Policy: what it says of a token does not depend on what lies around it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import policy as policy_lib

CONFIG = config_lib.ModelConfig(
    vocab_size=61, width=32, layers=3, heads=4, kv_heads=2, head_dim=8,
    mlp_width=48, rope_theta=100.0,
)
OTHER = CONFIG.replace(
    tied_embeddings=False,
    rope_scaling=config_lib.RopeScaling("llama3", 4.0, 1.0, 4.0, 16),
)
B, T = 3, 24
LENGTHS = (9, 6, 7)
SEQUENCES = [
    np.random.default_rng(seed).integers(0, 61, length)
    for seed, length in enumerate(LENGTHS)
]
TAUS = (1.0, 0.7, 1.3)


@functools.cache
def _params(config=CONFIG, dtype="float32"):
  params = policy_lib.Policy(config).init(jax.random.key(0))
  return jax.tree.map(lambda x: x.astype(dtype), params)


def _rows(rows):
  """Lays sequences out: rows[b] lists (sequence, first index).

  Padding holds what a careless caller might leave there.
  """
  tokens = np.full((B, T), 10**6)
  segment_ids = np.zeros((B, T), np.int32)
  positions = np.full((B, T), -7)
  temperatures = np.full((B, T), np.nan)
  places = {}
  for row, content in enumerate(rows):
    for segment, (sequence, start) in enumerate(content, 1):
      span = slice(start, start + LENGTHS[sequence])
      tokens[row, span] = SEQUENCES[sequence]
      segment_ids[row, span] = segment
      positions[row, span] = np.arange(LENGTHS[sequence])
      temperatures[row, span] = TAUS[sequence]
      places[sequence] = (row, span)
  batch = (tokens, segment_ids, segment_ids, positions, temperatures)
  return batch, places


UNPACKED = [[(0, 0)], [(1, 0)], [(2, 0)]]
LAYOUTS = {
    "packed": [[(0, 0), (1, 9), (2, 15)], [], []],
    "packed in another order, padded": [[], [(2, 1), (1, 8), (0, 15)], []],
    "left-padded": [[(0, 15)], [(1, 18)], [(2, 17)]],
    "padded on both sides": [[(0, 3)], [(1, 7)], [(2, 3)]],
    "rows shuffled": [[(2, 0)], [(0, 0)], [(1, 0)]],
}


def _score(policy, params, batch, **options):
  return policy.token_logprobs(params, *map(jnp.asarray, batch), **options)


@functools.cache
def _loss_and_gradient(dtype):
  """A jitted loss that weighs every token and entropy differently."""
  policy = policy_lib.Policy(CONFIG, dtype)

  def loss(params, batch, weights):
    scores = _score(policy, params, batch, entropy=True)
    return jnp.sum(weights * (scores.logprobs + 0.3 * scores.entropy))

  return jax.jit(jax.value_and_grad(loss))


def _weights(places):
  weights = np.zeros((B, T))
  for sequence, (row, span) in places.items():
    weights[row, span] = np.cos(np.arange(LENGTHS[sequence]) + sequence)
  return jnp.asarray(weights)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype, bound", [("float64", 1e-10),
                                          ("float32", 1e-5)])
def test_layout_changes_neither_loss_nor_gradient(layout, dtype, bound):
  """‖Δ‖/‖g‖ of every parameter array, with garbage in the padding."""
  with jax.enable_x64(dtype == "float64"):
    params = _params(CONFIG, dtype)
    results = []
    for rows in (UNPACKED, LAYOUTS[layout]):
      batch, places = _rows(rows)
      results.append(_loss_and_gradient(dtype)(params, batch, _weights(places)))
    (loss, gradient), (other_loss, other) = results
    np.testing.assert_allclose(other_loss, loss, rtol=bound)
    for ours, theirs in zip(
        jax.tree.leaves(gradient), jax.tree.leaves(other), strict=True
    ):
      assert ours.dtype == dtype
      assert np.linalg.norm(ours) > 0
      assert np.linalg.norm(ours - theirs) <= bound * np.linalg.norm(ours)


@functools.cache
def _scorer():
  policy, params = policy_lib.Policy(CONFIG, "float32"), _params()
  return jax.jit(
      lambda batch, mask, ids: _score(
          policy, params, batch, mask=mask, gather_ids=ids, entropy=True,
          topk=4,
      )
  )


def test_entries_speak_of_their_own_token():
  """Index convention, temperature, top-k and gather against full logits."""
  policy = policy_lib.Policy(CONFIG, "float32")
  batch, places = _rows(LAYOUTS["packed in another order, padded"])
  ids = np.random.default_rng(0).integers(0, 61, (B, T, 2))
  mask = np.ones((B, T), bool)
  mask[1, 3] = False
  found = _scorer()(batch, mask, ids)
  scored = np.zeros((B, T), bool)
  prefill, weights = jax.jit(policy.prefill), policy.serving_copy(_params())
  for sequence, (row, span) in places.items():
    prompt = np.zeros((1, 9), np.int32)
    prompt[0, : LENGTHS[sequence]] = SEQUENCES[sequence]
    for index in range(1, LENGTHS[sequence]):
      place = (row, span.start + index)
      if not mask[place]:
        continue
      scored[place] = True
      _, logits = prefill(weights, prompt, jnp.array([index]))
      full = jax.nn.log_softmax(logits[0] / TAUS[sequence])
      np.testing.assert_allclose(
          found.logprobs[place], full[SEQUENCES[sequence][index]], atol=2e-5
      )
      np.testing.assert_allclose(
          found.entropy[place], -jnp.sum(jnp.exp(full) * full), atol=2e-5
      )
      top, top_ids = jax.lax.top_k(full, 4)
      np.testing.assert_array_equal(found.topk_ids[place], top_ids)
      np.testing.assert_allclose(found.topk_logprobs[place], top, atol=2e-5)
      np.testing.assert_allclose(
          found.gathered[place], full[ids[place]], atol=2e-5
      )
  for values in jax.tree.leaves(found):
    np.testing.assert_array_equal(np.asarray(values)[~scored], 0)


def test_a_segment_does_not_see_another():
  """Other tokens in segment 1 leave segments 2 and 3 as they were."""
  ids = np.zeros((B, T, 2), np.int32)
  mask = np.ones((B, T), bool)
  batch, places = _rows(LAYOUTS["packed"])
  before = _scorer()(batch, mask, ids).logprobs
  row, span = places[0]
  batch[0][row, span] = (batch[0][row, span] + 1) % 61
  after = _scorer()(batch, mask, ids).logprobs
  np.testing.assert_array_equal(before[0, 9:], after[0, 9:])
  assert np.all(before[0, 1:9] != after[0, 1:9])


@functools.cache
def _gradient(dtype, remat):
  policy = policy_lib.Policy(CONFIG, dtype, remat)
  batch, places = _rows(UNPACKED)
  weights = _weights(places)

  def loss(params):
    return jnp.sum(weights * _score(policy, params, batch).logprobs)

  return jax.jit(jax.grad(loss))(_params())


def _relative(ours, theirs):
  return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.mark.parametrize("remat", ["products", "layers"])
@pytest.mark.parametrize("dtype, bound", [("float32", 3e-6),
                                          ("bfloat16", 1e-3)])
def test_remat_changes_no_gradient(dtype, bound, remat):
  for ours, theirs in zip(
      jax.tree.leaves(_gradient(dtype, remat)),
      jax.tree.leaves(_gradient(dtype, "none")),
      strict=True,
  ):
    assert _relative(ours, theirs) <= bound


def test_bfloat16_gradient_points_where_float32_does():
  """Cosine ≥ 0.999 for every array; gradients leave in float32."""
  for ours, theirs in zip(
      jax.tree.leaves(_gradient("bfloat16", "layers")),
      jax.tree.leaves(_gradient("float32", "layers")),
      strict=True,
  ):
    assert ours.dtype == jnp.float32
    norms = np.linalg.norm(ours) * np.linalg.norm(theirs)
    assert np.vdot(ours, theirs) / norms >= 0.999


@pytest.mark.parametrize("dtype, bound", [("float32", 1e-4),
                                          ("bfloat16", 0.03)])
def test_plain_twin_gives_inner_products_with_the_gradient(dtype, bound):
  """jvp(plain, direction) = ⟨∇, direction⟩."""
  policy = policy_lib.Policy(CONFIG, dtype)
  batch, places = _rows(UNPACKED)
  direction = policy.init(jax.random.key(9))

  @jax.jit
  def forward(params):
    return jax.jvp(
        lambda p: jnp.sum(
            _weights(places) * _score(policy, p, batch, plain=True).logprobs
        ),
        (params,),
        (direction,),
    )[1]

  gradient = _gradient(dtype, "layers")
  paired = sum(map(np.vdot, *map(jax.tree.leaves, (gradient, direction))))
  np.testing.assert_allclose(forward(_params()), paired, rtol=bound)


@pytest.mark.parametrize("parts", [(1, 1, 1), (2, 1)])
@pytest.mark.parametrize(
    "dtype, config, bound",
    [("float32", CONFIG, 1e-5), ("float32", OTHER, 1e-5),
     ("bfloat16", CONFIG, 2e-3)],
    ids=["float32", "float32 untied llama3", "bfloat16"],
)
def test_sampler_and_trainer_agree(dtype, config, bound, parts):
  """prefill + insert + decode + append say what token_logprobs says.

  Slots start at different lengths, one prompt serves two slots, one insert is
  skipped and one slot rests; two steps go by between two appends, and the
  cache grows.
  """
  policy = policy_lib.Policy(config, dtype)
  weights = policy.serving_copy(_params(config), parts)
  batch, _ = _rows(UNPACKED)
  expected = jax.jit(functools.partial(_score, policy))(
      _params(config), (*batch[:4], np.ones((B, T)))
  ).logprobs
  prompts = np.minimum(batch[0][:, :5], 60)
  prefilled, first = jax.jit(policy.prefill)(
      weights, prompts, jnp.array([5, 2, 3])
  )
  sequences, positions = np.array([2, 0, 0, 1]), np.array([3, 5, 5, 2])
  cache = policy.init_cache(weights, 5, 64)
  cache = jax.jit(policy_lib.insert)(
      cache, jnp.array([0, 1, 2, 3, 5]), prefilled, jnp.array([2, 0, 0, 1, 1])
  )

  @jax.jit
  def step(cache, lengths, index, tokens, recent):
    read = policy.decode(weights, cache, lengths)
    return read(index, tokens, recent)

  logits = np.concatenate([first[sequences], first[:1]])
  worst = 0.0
  for _ in range(2):
    lengths = np.append(positions, 9)
    recent = policy_lib.no_recent(cache, 2)
    for index in range(2):
      logprobs = jax.nn.log_softmax(logits[:4])
      tokens = batch[0][sequences, positions]
      found = logprobs[np.arange(4), tokens]
      difference = np.abs(found - expected[sequences, positions])
      worst = max(worst, np.max(difference))
      recent, logits = step(
          cache, lengths, index, np.append(tokens, 7), recent
      )
      positions = positions + 1
    cache = policy_lib.append(cache, recent, lengths)
    cache = policy_lib.resize(cache, 128)
  assert worst <= bound, worst


def test_capacity_changes_no_bit():
  """A step on a larger cache, beyond what is held, gives the same logits."""
  for dtype in ("float32", "bfloat16"):
    policy = policy_lib.Policy(CONFIG, dtype)
    # A copy of a copy is laid out as one of the masters is.
    weights = policy.serving_copy(policy.compute_copy(_params()))
    chex.assert_trees_all_equal(weights, policy.serving_copy(_params()))
    prompts = np.arange(200).reshape(4, 50) % 60
    lengths = jnp.array([50, 3, 17, 31])
    prefilled, _ = jax.jit(policy.prefill)(weights, prompts, lengths)
    cache = policy_lib.insert(
        policy.init_cache(weights, 4, 64), jnp.arange(4), prefilled,
        jnp.arange(4),
    )
    found = []
    for capacity in (64, 128, 192, 512):
      larger = policy_lib.resize(cache, capacity)
      # What lies beyond a slot's tokens is not read.
      larger = jax.tree.map(
          lambda x: jnp.where(x == 0, jnp.asarray(0x4000, x.dtype), x), larger
      )
      read = policy.decode(weights, larger, lengths)
      recent = policy_lib.no_recent(larger, 4)
      found.append(np.asarray(jax.jit(read)(0, lengths, recent)[1]))
    for other in found[1:]:
      np.testing.assert_array_equal(found[0], other)


def test_no_array_has_both_tokens_and_vocabulary(monkeypatch):
  """Every array of the gradient's program with V in its shape is a chunk."""
  monkeypatch.setattr("jaxrl_llm.models.head.CHUNK_TOKENS", 12)
  monkeypatch.setattr("jaxrl_llm.models.head.MIN_ROW_TOKENS", 1)
  policy = policy_lib.Policy(CONFIG)
  batch, _ = _rows(UNPACKED)
  program = jax.make_jaxpr(jax.grad(
      lambda p: jnp.sum(_score(policy, p, batch, entropy=True).logprobs)
  ))(_params())
  largest = 0

  def visit(jaxpr):
    nonlocal largest
    for equation in jaxpr.eqns:
      for variable in equation.outvars:
        shape = variable.aval.shape
        if 61 in shape:
          largest = max(largest, np.prod(shape) // 61)
      for parameter in jax.tree.leaves(
          list(equation.params.values()),
          is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"),
      ):
        inner = getattr(parameter, "jaxpr", parameter)
        if hasattr(inner, "eqns"):
          visit(inner)

  visit(program.jaxpr)
  # The weight itself has 32 values per id; a chunk has 3 rows of 4 tokens.
  assert largest == CONFIG.width
  assert B * T > CONFIG.width


def test_a_compute_copy_scores_as_its_masters_do():
  policy = policy_lib.Policy(CONFIG)
  batch, _ = _rows(UNPACKED)
  masters = jax.jit(functools.partial(_score, policy))(_params(), batch)
  copy = policy.compute_copy(_params())
  for plain in (False, True):
    score = jax.jit(functools.partial(_score, policy, plain=plain))
    np.testing.assert_allclose(
        score(copy, batch).logprobs, masters.logprobs, atol=1e-5
    )


def test_copies_and_fingerprints():
  policy = policy_lib.Policy(CONFIG)
  params = _params()
  copy = policy.compute_copy(params)
  assert policy.compute_copy(copy) is copy
  assert copy["layers"]["query"].nbytes * 2 == params["layers"]["query"].nbytes
  changed = params | {"final_norm": params["final_norm"].at[3].add(1e-6)}
  names = {policy_lib.fingerprint(p) for p in (params, changed)}
  assert len(names) == 2
  again = jax.tree.map(lambda x: np.array(x, order="F"), params)
  assert policy_lib.fingerprint(again) == policy_lib.fingerprint(params)
