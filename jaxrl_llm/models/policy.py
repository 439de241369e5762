"""Policy: the only model API that the rest of the package uses.

One network, many parameter trees (live, proximal, reference, …). A tree is
  {"embedding": [V, D],
   "layers": {"attention_norm": [L, D], "query": [L, D, N, H],
              "key": [L, D, K, H], "value": [L, D, K, H],
              "output": [L, N, H, D], "mlp_norm": [L, D],
              "gate": [L, D, F], "up": [L, D, F], "down": [L, F, D]},
   "final_norm": [D], "head": [D, V] only when the embedding is not tied}
of float32 masters; rotary pairs are (i, i + H/2), as in Hugging Face Llama.
Families whose blocks have more add, by layer, "query_bias" [L, N, H],
"key_bias" and "value_bias" [L, K, H], "query_norm" and "key_norm" [L, H],
"attention_post_norm" and "mlp_post_norm" [L, D].
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import os

from flax import linen as nn
import jax
import jax.numpy as jnp

from jaxrl_llm import platforms
from jaxrl_llm import types
from jaxrl_llm.models import block
from jaxrl_llm.models import cache as cache_lib
from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import decoder
from jaxrl_llm.models import export
from jaxrl_llm.models import fingerprints
from jaxrl_llm.models import frozen
from jaxrl_llm.models import head
from jaxrl_llm.models import layers
from jaxrl_llm.models import loading
from jaxrl_llm.models import lora as lora_lib
from jaxrl_llm.models import matmul
from jaxrl_llm.models import peft_export
from jaxrl_llm.models import presets
from jaxrl_llm.models import settings as settings_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.models import trees
from jaxrl_llm.models import weights

Array = types.Array
PyTree = types.PyTree
ModelConfig = config_lib.ModelConfig
ModelSettings = settings_lib.ModelSettings
TokenLogprobs = head.TokenLogprobs
Cache = cache_lib.Cache
Recent = cache_lib.Recent
CACHE_BLOCK = cache_lib.BLOCK
preset = presets.preset
append = cache_lib.append
insert = cache_lib.insert
laid_out = cache_lib.laid_out
no_recent = cache_lib.no_recent
resize = cache_lib.resize
check_target = export.check_target
chunk_tokens = head.chunk_tokens
fingerprint = fingerprints.of_weights
STORAGES = frozen.STORAGES
base = lora_lib.base
trained = lora_lib.trained
with_trained = lora_lib.with_trained

# Folded into the key that adapters are drawn with.
_ADAPTERS_STREAM = 1


@dataclasses.dataclass(frozen=True)
class Policy:
  """A network and how it computes; hashable, so static under jit.

  Attributes:
    config: sizes.
    compute_dtype: inputs of matrix products: bfloat16 or float32 (float64
      under jax.enable_x64, with float64 parameters). Sums, norms, softmax and
      log-probs stay in float32 or wider.
    remat: what a backward pass recomputes of each layer: nothing (none), all
      but what its products need (products), or all of it (layers).
    lora: adapters that are trained in the place of the weights, or None.
    base_dtype: what the weights beside adapters are stored in (see frozen.py).
  """

  config: ModelConfig
  compute_dtype: str = "bfloat16"
  remat: str = "products"
  lora: lora_lib.Lora | None = None
  base_dtype: str = "float32"

  def init(self, key: Array) -> PyTree:
    """Draws random float32 parameters, with adapters where there are some."""
    return self.start(nn.unbox(self._boxed(key)), key)

  def start(self, masters: PyTree, key: Array) -> PyTree:
    """Returns what training starts from.

    Args:
      masters: float32 parameters.
      key: the adapters are drawn with it.

    Returns:
      The masters, or {"adapters", "base"} (see lora.py).
    """
    if self.lora is None:
      return masters
    return {
        lora_lib.ADAPTERS: self.init_adapters(key),
        lora_lib.BASE: self.freeze(masters, self.base_dtype),
    }

  def init_adapters(self, key: Array) -> PyTree:
    """Draws adapters; the masters may be drawn with the key itself."""
    key = jax.random.fold_in(key, _ADAPTERS_STREAM)
    return lora_lib.init(self.lora, self.config, key)

  def _boxed(self, key):
    tokens = jnp.zeros((1, 2), jnp.int32)
    context = self._packed(tokens, tokens, tokens)
    network = decoder.Decoder(self.config, jnp.dtype(jnp.float32))
    return network.init(key, tokens, context)["params"]

  @functools.cached_property
  def shapes(self) -> PyTree:
    """Shape structs of the parameters."""
    return jax.eval_shape(self.init, jax.random.key(0))

  @functools.cached_property
  def logical_axes(self) -> PyTree:
    """Tuples of logical axis names, in the tree of the parameters."""
    return self.axes_like(self.shapes)

  def axes_like(self, params: PyTree) -> PyTree:
    """Tuples of logical axis names, in the tree of `params`.

    Args:
      params: arrays or shapes: masters, a frozen tree (see frozen.py), or one
        with adapters.
    """
    return trees.axes_like(params, self._master_axes, self.lora)

  @functools.cached_property
  def _master_axes(self):
    boxed = jax.eval_shape(self._boxed, jax.random.key(0))
    return jax.tree.map(
        lambda box: tuple(box.names),
        boxed,
        is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned),
    )

  @property
  def _dtype(self):
    return jnp.dtype(self.compute_dtype)

  def _tables(self, positions):
    """Returns rotary tables by the names of block.Context."""
    local = self.config.sliding_window > 0
    names = {"tables": False} | ({"local_tables": True} if local else {})
    dtype = matmul.sum_dtype(self._dtype)
    return {
        name: layers.rotary_tables(self.config, positions, dtype, kind)
        for name, kind in names.items()
    }

  def _packed(self, positions, segment_ids, parent_ids):
    return block.Context(
        **self._tables(positions),
        segment_ids=segment_ids,
        parent_ids=parent_ids,
        positions=positions if self.config.sliding_window else None,
    )

  def compute_copy(self, params: PyTree) -> PyTree:
    """Rounds the weights of products to the compute dtype, once.

    What takes no gradient may take the copy in place of the masters and gives
    the same numbers. A copy of a copy is the copy itself, as is one of any
    frozen tree. Of a tree with adapters the base alone is copied.

    Args:
      params: masters.

    Returns:
      A frozen tree (see frozen.py) in the compute dtype.
    """
    return trees.compute_copy(params, self._dtype)

  def without_adapters(self) -> "Policy":
    """Returns the policy whose parameters are those that `merged` gives."""
    return dataclasses.replace(self, lora=None, base_dtype="float32")

  def freeze(self, params: PyTree, dtype: str) -> PyTree:
    """Returns masters as weights are kept that are not trained.

    Args:
      params: masters.
      dtype: float32 (as they are), bfloat16 or int8.
    """
    return params if dtype == "float32" else frozen.freeze(params, dtype)

  def _hidden(self, params, rounded, tokens, context, **flags):
    """Returns the last hidden states, float32 [B, T, D].

    Args:
      params: as the caller was given them.
      rounded: their compute copy.
      tokens: int32 [B, T].
      context: see block.Context.
      **flags: of decoder.Decoder.
    """
    if lora_lib.has_adapters(params):
      flags["adapter_scale"] = self.lora.scale
    network = decoder.Decoder(self.config, self._dtype, **flags)
    return network.apply(trees.variables(params, rounded), tokens, context)

  def token_logprobs(
      self,
      params: PyTree,
      tokens: Array,
      segment_ids: Array,
      parent_ids: Array,
      positions: Array,
      temperatures: Array,
      mask: Array | None = None,
      *,
      gather_ids: Array | None = None,
      entropy: bool = False,
      topk: int = 0,
      plain: bool = False,
  ) -> TokenLogprobs:
    """Scores packed rows: log π_τ(tokens[t] | earlier tokens of its segment).

    The tokens of a segment's parent are read before its own. Entry t of every
    output speaks of tokens[t]; the first token of a segment and padding give
    0. Values do not depend on other segments of the row, nor on the amount,
    side or content of padding.

    Args:
      params: masters, or a frozen tree if no gradient is taken, or one with
        adapters, which then take the gradient alone.
      tokens: int32 [B, T].
      segment_ids: int32 [B, T], 0 on padding.
      parent_ids: int32 [B, T], the segment that each continues, which lies
        before it in the row; the own one where there is none.
      positions: int32 [B, T], index within the sequence.
      temperatures: float32 [B, T], τ of the distribution of tokens[t].
      mask: bool [B, T], tokens to score; elsewhere the outputs are 0 and no
        head is computed. None scores every token.
      gather_ids: int32 [B, T, K'], ids to score at the place of tokens[t].
      entropy: also give the entropy.
      topk: also give this many most likely ids and their log-probs.
      plain: use the twin that is differentiable forward (jax.jvp); it has no
        reverse derivative.

    Returns:
      TokenLogprobs, float32 nats.
    """
    filled = segment_ids > 0
    rounded = jax.lax.stop_gradient(self.compute_copy(params))
    hidden = self._hidden(
        params, rounded, tokens,
        self._packed(positions, segment_ids, parent_ids),
        remat="none" if plain else self.remat, plain=plain,
    )
    scored = filled[:, 1:] & (segment_ids[:, 1:] == segment_ids[:, :-1])
    if mask is not None:
      scored &= mask[:, 1:]
    constant = trees.is_frozen(params)
    result = head.token_logprobs(
        hidden[:, :-1],
        trees.head(rounded).astype(self._dtype),
        None if constant else trees.head(params),
        tokens[:, 1:],
        temperatures[:, 1:],
        scored,
        None if gather_ids is None else gather_ids[:, 1:],
        head.Request(entropy, topk, self.config.logit_softcap, constant),
        plain,
    )
    return jax.tree.map(
        lambda x: jnp.pad(x, ((0, 0), (1, 0)) + ((0, 0),) * (x.ndim - 2)),
        result,
    )

  def token_values(
      self,
      params: PyTree,
      head: Mapping[str, Array],
      tokens: Array,
      segment_ids: Array,
      parent_ids: Array,
      positions: Array,
  ) -> Array:
    """A value of each token of packed rows: h_t · weight + bias, float32.

    Entry t has read tokens[t]; h_t is the normed last hidden state, so the
    value of the state before tokens[t] is entry t − 1 of its segment.

    Args:
      params: as in `token_logprobs`.
      head: of `init_value_head`.
      tokens: int32 [B, T].
      segment_ids: as in `token_logprobs`.
      parent_ids: as in `token_logprobs`.
      positions: int32 [B, T], index within the sequence.
    """
    rounded = jax.lax.stop_gradient(self.compute_copy(params))
    hidden = self._hidden(
        params, rounded, tokens,
        self._packed(positions, segment_ids, parent_ids),
        remat=self.remat,
    )
    return jnp.sum(hidden * head["weight"], axis=-1) + head["bias"]

  def init_value_head(self) -> dict[str, Array]:
    """A head for `token_values` that says 0 of everything, float32."""
    return {"weight": jnp.zeros(self.config.width), "bias": jnp.zeros(())}

  def serving_copy(
      self,
      params: PyTree,
      parts: Sequence[int] | None = None,
      spread: bool = False,
  ) -> PyTree:
    """Rounds and lays out the weights for `prefill` and `decode`.

    Args:
      params: masters, a frozen tree, or one with adapters, which are merged.
      parts: layers of each part (see decoder.serve); None takes one layer
        each on CPUs and one part elsewhere.
      spread: keep the weights spread over the mesh's axis fsdp, so that each
        step gathers them; otherwise they are whole there.

    Returns:
      "parts" of decoder.serving_layers, "embedding" as bits, "head" [V, D] in
      the compute dtype, and "final_norm".
    """
    if parts is None:
      layers_ = self.config.layers
      parts = (1,) * layers_ if platforms.current() == "cpu" else (layers_,)
    base = trees.base_of(params)
    stack = base["layers"]
    if lora_lib.has_adapters(params):
      stack = lora_lib.merged_layers(self.lora, params)
    table = sharding.served(("vocab", "embed"), spread)
    embedding = matmul.from_bits(base["embedding"]).astype(self._dtype)
    head_ = trees.head(params).astype(self._dtype)
    return {
        "embedding": sharding.constrain(matmul.to_bits(embedding), table),
        "parts": decoder.serving_layers(stack, self._dtype, parts, spread),
        "final_norm": base["final_norm"],
        "head": sharding.constrain(head_, table),
    }

  def merged(self, params: PyTree) -> PyTree:
    """Returns float32 masters of the same policy, without adapters."""
    return trees.merged(params, self.lora, self.config.tied_embeddings)

  def init_cache(self, weights: PyTree, slots: int, capacity: int) -> Cache:
    """Returns an empty cache of `slots` rows with room for C tokens.

    Args:
      weights: of `serving_copy`, whose parts it shares.
      slots: S.
      capacity: C, a multiple of cache.BLOCK.
    """
    parts = tuple(part["mlp_norm"].shape[0] for part in weights["parts"])
    return cache_lib.empty(self.config, self._dtype, parts, slots, capacity)

  def prefill(
      self, weights: PyTree, tokens: Array, lengths: Array
  ) -> tuple[Cache, Array]:
    """Reads prompts.

    Args:
      weights: of `serving_copy`.
      tokens: int32 [B, P], prompts padded on the right.
      lengths: int32 [B], tokens of each prompt, at least 1.

    Returns:
      A cache of B rows and capacity P, to be copied with `insert`, and the
      logits after each prompt's last token, float32 [B, V].
    """
    index = jnp.arange(tokens.shape[1])
    segment_ids = (index[None, :] < lengths[:, None]).astype(jnp.int32)
    positions = jnp.broadcast_to(index, tokens.shape)
    hidden, made = decoder.serve(
        self.config, weights, tokens, [None] * len(weights["parts"]),
        self._packed(positions, segment_ids, segment_ids),
    )
    keys, values = zip(*(cache_lib.of_rows(*part) for part in made))
    last = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)
    made = cache_lib.laid_out(Cache(keys, values))
    return made, self._logits(weights, last[:, 0])

  def _logits(self, weights, hidden):
    weight = weights["head"]
    logits = matmul.einsum("sd,vd->sv", hidden.astype(weight.dtype), weight)
    # Each row whole on one device: what is drawn from it needs all of it. Made
    # where the head lies, so that logits are moved and not the head.
    logits = sharding.constrain(logits, ("batch", "vocab"))
    logits = sharding.constrain_rows(logits)
    return head.capped(logits, self.config.logit_softcap)

  def decode(
      self, weights: PyTree, cache: Cache, lengths: Array
  ) -> Callable[[Array, Array, Recent], tuple[Recent, Array]]:
    """Makes the step that reads one token per slot and gives the next logits.

    The cache is only read. The tokens of the steps go to a Recent, which
    `append` writes to the cache.

    Args:
      weights: of `serving_copy`.
      cache: of S slots.
      lengths: int32 [S], tokens that each holds.

    Returns:
      (index, tokens, recent) → (recent, logits): index int32, the number of
      steps before, below R; tokens int32 [S], which follow the cache and
      `index` recent ones; logits float32 [S, V].
    """
    held = list(zip(cache.keys, cache.values))
    if platforms.current() == "cpu":
      # Once; elsewhere that copies all of it, and each layer reads bits.
      held = [tuple(map(matmul.from_bits, part)) for part in held]

    def step(index, tokens, recent):
      # The barrier keeps cosines from being computed again in every layer.
      tables = jax.lax.optimization_barrier(self._tables(lengths + index))
      hidden, made = decoder.serve(
          self.config, weights, tokens,
          [(*part, *r) for part, *r in zip(held, recent.keys, recent.values)],
          block.Context(**tables, lengths=lengths, index=index),
      )
      return Recent(*zip(*made)), self._logits(weights, hidden)

    return step


def load(
    path: str | os.PathLike[str],
    settings: ModelSettings,
    seed: int = 0,
    mesh: jax.sharding.Mesh | None = None,
    storage: str = "float32",
) -> tuple[Policy, PyTree]:
  """Reads a model, or draws random weights of a named size, onto a mesh.

  Args:
    path: Hugging Face folder (an export of this package too) or .gguf file;
      empty draws `settings.preset` at random.
    settings: how to compute, and the preset.
    seed: of random weights and of adapters; not read otherwise.
    mesh: where the parameters are laid; None takes one device.
    storage: what weights without adapters are kept in (see Policy.freeze).

  Returns:
    The policy and its parameters, as Policy.start gives them.

  Raises:
    FileNotFoundError, ValueError: in one line, with the remedy.
  """
  source = weights.open_model(path) if path else None
  policy = _network(settings, source)
  whole = policy.without_adapters()
  mesh = sharding.make_mesh("data=1") if mesh is None else mesh
  places = sharding.shardings(mesh, whole.logical_axes, whole.shapes)
  key = jax.random.key(seed)
  if source is None:
    leaves = loading.taken_from(loading.draw(whole.init, key, places))
  else:
    leaves = loading.read(source, places)
  storage = policy.base_dtype if policy.lora else storage
  if storage == "float32":
    base_ = loading.masters(leaves)
  else:
    shapes = jax.eval_shape(lambda x: whole.freeze(x, storage), whole.shapes)
    axes = whole.axes_like(shapes)
    at = sharding.shardings(mesh, axes, shapes)
    base_ = loading.freeze(leaves, storage, at)
  if policy.lora is None:
    return policy, base_
  at = sharding.shardings(
      mesh, trained(policy.logical_axes), trained(policy.shapes)
  )
  adapters = loading.draw(policy.init_adapters, key, at)
  return policy, {lora_lib.ADAPTERS: adapters, lora_lib.BASE: base_}


def network(
    path: str | os.PathLike[str], settings: ModelSettings
) -> Policy:
  """Returns the policy of `load`, without reading any weights.

  Raises:
    FileNotFoundError, ValueError: in one line, with the remedy.
  """
  return _network(settings, weights.open_model(path) if path else None)


def _network(settings, source):
  """Returns the policy of files, or of the preset where there are none."""
  return Policy(
      source.config if source else preset(settings.preset),
      settings.compute_dtype,
      settings.remat,
      settings.lora,
      settings.frozen_dtype,
  )


def save(
    path: str | os.PathLike[str],
    policy: Policy,
    params: PyTree,
    tokenizer_files: Mapping[str, bytes],
    dtype: str = "",
) -> None:
  """Writes a Hugging Face folder; see `export.save` for each argument.

  Adapters are merged into the weights.
  """
  params = policy.merged(params)
  export.save(path, policy.config, params, tokenizer_files, dtype=dtype)


def save_adapters(
    path: str | os.PathLike[str],
    policy: Policy,
    params: PyTree,
    base_name: str,
) -> None:
  """Writes the adapters alone, as a folder that PEFT loads.

  Args:
    path: folder to create; it must not exist, or be empty.
    policy: with adapters.
    params: of it.
    base_name: of the model that is adapted, as transformers would load it.

  Raises:
    ValueError: there are no adapters.
  """
  if policy.lora is None:
    raise ValueError(
        "export.format: expected adapters (model.lora_rank above 0) for peft, "
        "found none; set it to model."
    )
  adapters = lora_lib.trained(params)
  peft_export.save(path, policy.config, policy.lora, adapters, base_name)
