"""Log-probabilities over the vocabulary, without an array of both T and V.

The rows of a batch are walked in chunks of tokens. In each chunk the logits
are made, reduced to a few numbers per token, and dropped; the backward pass
makes them again. Tokens whose log-prob nobody asked for are sorted behind the
others in each row, and the walk stops before them. On a mesh each device walks
its own rows, with the whole head beside it, and the gradients of the head are
summed over the devices once, behind the walk.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import types
from jaxrl_llm.models import matmul
from jaxrl_llm.models import own_parts
from jaxrl_llm.models import sharding

Array = types.Array

# Tokens of all rows of a device together whose logits are held at once.
CHUNK_TOKENS = 512
# A row gives at least this many tokens to a chunk.
MIN_ROW_TOKENS = 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenLogprobs:
  """What the policy says of each token; all float32 nats, 0 where not asked.

  Attributes:
    logprobs: [B, T], log π(tokens[t] | earlier tokens of the segment).
    entropy: [B, T], of the distribution that tokens[t] is drawn from.
    topk_ids: int32 [B, T, K], most likely ids in falling order.
    topk_logprobs: [B, T, K], their log-probs.
    gathered: [B, T, K'], log-probs at the given ids.
  """

  logprobs: Array
  entropy: Array | None = None
  topk_ids: Array | None = None
  topk_logprobs: Array | None = None
  gathered: Array | None = None


@dataclasses.dataclass(frozen=True)
class Request:
  """What to compute beside the log-probs, and how; static under jit.

  Attributes:
    entropy: give the entropy.
    topk: give this many most likely ids.
    softcap: c of c · tanh(logit / c), before the temperature; 0: none.
    frozen: there is no master, and nothing takes the weight's gradient.
  """

  entropy: bool = False
  topk: int = 0
  softcap: float = 0.0
  frozen: bool = False


def token_logprobs(
    hidden: Array,
    weight: Array,
    master: Array | None,
    targets: Array,
    temperatures: Array,
    mask: Array,
    gather_ids: Array | None,
    request: Request,
    plain: bool = False,
) -> TokenLogprobs:
  """Scores one target per position under softmax(hidden · weightᵀ / τ).

  Args:
    hidden: float32 [B, T, D].
    weight: compute dtype [V, D]; receives no gradient.
    master: float32 [V, D], receives the gradient; None where the request
      says frozen.
    targets: int32 [B, T], scored ids.
    temperatures: float32 [B, T], positive where mask holds.
    mask: bool [B, T], positions that are asked for.
    gather_ids: int32 [B, T, K'] more ids to score, or None; an id outside
      the vocabulary reads the nearest one inside.
    request: see Request.
    plain: use the twin that is differentiable forward (jax.jvp).

  Returns:
    TokenLogprobs of the same positions, zero where mask is False.
  """
  rows, tokens = mask.shape
  last = weight.shape[0] - 1
  targets = jnp.clip(targets, 0, last)
  if gather_ids is not None:
    gather_ids = jnp.clip(gather_ids, 0, last)
  order = jnp.argsort(~mask, axis=1, stable=True)
  chunk = chunk_tokens(rows, tokens)
  length = -(-tokens // chunk) * chunk

  def sort(values):
    values = jax.vmap(lambda row, index: row[index])(values, order)
    padding = ((0, 0), (0, length - tokens)) + ((0, 0),) * (values.ndim - 2)
    return jnp.pad(values, padding)

  mask = sort(mask)
  asked = (
      sort(targets),
      jnp.where(mask, sort(temperatures), 1.0),
      mask,
      None if gather_ids is None else sort(gather_ids),
  )
  compute = _plain_walk if plain else _walk
  hidden = jnp.where(mask[..., None], sort(hidden), 0.0)
  result = compute(hidden, weight, master, asked, request, chunk)
  place = jnp.argsort(order, axis=1)
  return jax.tree.map(
      lambda values: jax.vmap(lambda row, index: row[index])(values, place),
      result,
  )


def chunk_tokens(rows: int, tokens: int) -> int:
  """Returns the tokens that each of B rows of T gives to a chunk."""
  rows_here = rows // own_parts.parts_of_rows(rows)
  return min(tokens, max(MIN_ROW_TOKENS, CHUNK_TOKENS // rows_here))


def _chunks(mask, chunk):
  """Returns how many chunks hold a position that was asked for."""
  longest = jnp.max(jnp.sum(mask, axis=1, dtype=jnp.int32))
  return (longest + chunk - 1) // chunk


def _part(tree, start, chunk):
  return jax.tree.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, start, chunk, axis=1), tree
  )


def _put(tree, part, start):
  return jax.tree.map(
      lambda x, y: jax.lax.dynamic_update_slice_in_dim(
          x, y.astype(x.dtype), start, axis=1
      ),
      tree,
      part,
  )


def capped(logits: Array, softcap: float) -> Array:
  """Returns c · tanh(logits / c), or the logits where c is 0."""
  return softcap * jnp.tanh(logits / softcap) if softcap else logits


def _scaled_logits(hidden, weight, temperatures, softcap):
  logits = capped(matmul.einsum("btd,vd->btv", hidden, weight), softcap)
  return logits / temperatures[..., None].astype(logits.dtype)


def _score(logits, asked, request):
  """Reduces logits [B, C, V] to (TokenLogprobs, log-normaliser [B, C])."""
  targets, _, mask, gather_ids = asked
  # The maximum cancels from the softmax; so it needs no derivative.
  peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  weights = jnp.exp(logits - peak)
  total = jnp.sum(weights, axis=-1)
  log_sum = peak[..., 0] + jnp.log(total)

  def at(ids):
    picked = jnp.take_along_axis(logits, ids, axis=-1)
    return jnp.where(mask[..., None], picked - log_sum[..., None], 0.0)

  entropy = topk_ids = topk_logprobs = gathered = None
  if request.entropy:
    mean = jnp.sum(weights * logits, axis=-1) / total
    entropy = jnp.where(mask, log_sum - mean, 0.0)
  if request.topk:
    topk_ids = jax.lax.top_k(jax.lax.stop_gradient(logits), request.topk)[1]
    topk_ids = jnp.where(mask[..., None], topk_ids, 0)
    topk_logprobs = at(topk_ids)
  if gather_ids is not None:
    gathered = at(gather_ids)
  logprobs = at(targets[..., None])[..., 0]
  return (
      TokenLogprobs(logprobs, entropy, topk_ids, topk_logprobs, gathered),
      log_sum,
  )


def _forward(hidden, weight, asked, request, chunk):
  """Walks the chunks; hidden and weight are in the compute dtype."""
  walk = functools.partial(_forward_here, request=request, chunk=chunk)
  rows = sharding.partition_spec(("batch",))
  return own_parts.on_own_rows(
      walk, asked[2].shape[0], (rows, sharding.partition_spec(()), rows), rows
  )(hidden, weight, asked)


def _forward_here(hidden, weight, asked, request, chunk):
  """Walks the chunks of the rows of one device."""
  mask = asked[2]

  def score(start):
    ask = _part(asked, start, chunk)
    part = _part(hidden, start, chunk)
    logits = _scaled_logits(part, weight, ask[1], request.softcap)
    return _score(logits, ask, request)

  shapes = jax.eval_shape(score, 0)
  empty = jax.tree.map(
      lambda x: jnp.zeros(mask.shape + x.shape[2:], x.dtype), shapes
  )

  def step(index, filled):
    return _put(filled, score(index * chunk), index * chunk)

  return jax.lax.fori_loop(0, _chunks(mask, chunk), step, empty)


def _plain_walk(hidden, weight, master, asked, request, chunk):
  dtype = weight.dtype
  if not request.frozen:
    weight = matmul.round_through(master, dtype).astype(dtype)
  return _forward(hidden.astype(dtype), weight, asked, request, chunk)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _walk(hidden, weight, master, asked, request, chunk):
  del master
  hidden = hidden.astype(weight.dtype)
  return _forward(hidden, weight, asked, request, chunk)[0]


def _walk_fwd(hidden, weight, master, asked, request, chunk):
  del master
  hidden = hidden.astype(weight.dtype)
  result, log_sums = _forward(hidden, weight, asked, request, chunk)
  return result, (hidden, weight, asked, result, log_sums)


def _walk_bwd(request, chunk, residuals, cotangent):
  """Makes each chunk's logits again and sends the gradient through them."""
  hidden, weight, asked, result, log_sums = residuals
  cotangent = dataclasses.replace(cotangent, topk_ids=None)
  walk = functools.partial(_backward_here, request=request, chunk=chunk)
  rows = sharding.partition_spec(("batch",))
  to_hidden, to_master = own_parts.on_own_rows(
      walk,
      asked[2].shape[0],
      (rows, sharding.partition_spec(()), rows, rows, rows, rows),
      (rows, rows),
  )(hidden, weight, asked, result, log_sums, cotangent)
  if to_master is not None:
    to_master = own_parts.sum_over_rows(to_master, ("vocab", "embed"))
  return to_hidden, None, to_master, None


def _backward_here(
    hidden, weight, asked, result, log_sums, cotangent, request, chunk
):
  """Sums over the chunks of the rows of one device; [1, V, D] of the head."""
  softcap = request.softcap
  mask, dtype = asked[2], weight.dtype
  total_dtype = matmul.sum_dtype(dtype)

  def step(index, sums):
    to_hidden, to_master = sums
    start = index * chunk
    part, ask = _part((hidden, asked), start, chunk)
    logits = _scaled_logits(part, weight, ask[1], softcap)
    to_logits = _logits_gradient(
        logits, ask, *_part((result, log_sums, cotangent), start, chunk)
    )
    if softcap:
      share = logits * ask[1][..., None] / softcap
      to_logits *= 1 - jnp.square(share)
    to_logits = to_logits.astype(dtype)
    to_part = matmul.einsum("btv,vd->btd", to_logits, weight)
    if not request.frozen:
      to_master += matmul.outer(
          jnp.reshape(to_logits, (-1, to_logits.shape[-1])),
          jnp.reshape(part, (-1, part.shape[-1])),
      )
    return _put(to_hidden, to_part, start), to_master

  zeros = (
      jnp.zeros(hidden.shape, total_dtype),
      None if request.frozen else jnp.zeros(weight.shape, total_dtype),
  )
  to_hidden, to_master = jax.lax.fori_loop(
      0, _chunks(mask, chunk), step, zeros
  )
  return to_hidden, None if to_master is None else to_master[None]


def _logits_gradient(logits, asked, result, log_sums, cotangent):
  """Returns the gradient of the unscaled logits, float32 [B, C, V].

  With p = softmax(z), z = logits / τ and g the cotangents:
    ∂/∂z_v = Σ_i g_i (1[v = id_i] − p_v) − g_H p_v (log p_v + H).
  """
  targets, temperatures, mask, gather_ids = asked
  ids = [targets[..., None]]
  given = [cotangent.logprobs[..., None]]
  if result.topk_ids is not None:
    ids.append(result.topk_ids)
    given.append(cotangent.topk_logprobs)
  if gather_ids is not None:
    ids.append(gather_ids)
    given.append(cotangent.gathered)
  ids, given = jnp.concatenate(ids, -1), jnp.concatenate(given, -1)
  scale = jnp.where(mask, 1.0 / temperatures, 0.0).astype(given.dtype)
  given = jnp.where(mask[..., None], given, 0.0) * scale[..., None]

  logprobs = logits - log_sums[..., None]
  factor = -jnp.sum(given, axis=-1, keepdims=True)
  if result.entropy is not None:
    weight = jnp.where(mask, cotangent.entropy, 0.0) * scale
    factor -= weight[..., None] * (logprobs + result.entropy[..., None])
  gradient = factor * jnp.exp(logprobs)
  row, token = jnp.indices(mask.shape)
  return gradient.at[row[..., None], token[..., None], ids].add(given)


_walk.defvjp(_walk_fwd, _walk_bwd)
