"""The shape of a network, independent of its weights and of how it computes."""

import collections
from collections.abc import Mapping
import dataclasses
from typing import Any

from jaxrl_llm.models import families

ROPE_SCALINGS = ("none", "linear", "llama3", "yarn")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How rotary frequencies stretch beyond the context of pre-training.

  Attributes:
    kind: none, linear (every frequency / factor), llama3 (only the slow ones,
      with a smooth transition; Llama 3.1, §3.4.1 of its report) or yarn
      (likewise, and larger scores; arXiv 2309.00071).
    factor: how much longer the context becomes.
    low_frequency_factor: llama3: wavelengths above
      original_context_length / this are divided by the whole factor.
    high_frequency_factor: llama3: wavelengths below
      original_context_length / this stay.
    original_context_length: llama3, yarn: context of pre-training, in tokens.
    fast_rotations: yarn: frequencies that turn at least this often within
      original_context_length stay.
    slow_rotations: yarn: those that turn at most this often are divided by
      the whole factor.
    magnitude: yarn: factor of cosines and sines; None takes 0.1 ln factor + 1.
  """

  kind: str = "none"
  factor: float = 1.0
  low_frequency_factor: float = 1.0
  high_frequency_factor: float = 4.0
  original_context_length: int = 8192
  fast_rotations: float = 32.0
  slow_rotations: float = 1.0
  magnitude: float | None = None

  def __post_init__(self):
    if self.kind not in ROPE_SCALINGS:
      raise ValueError(
          f"rope_scaling.kind: expected one of {', '.join(ROPE_SCALINGS)}, "
          f"found {self.kind!r}; this model needs a new rule in layers.py."
      )
    if self.factor < 1.0:
      raise ValueError(
          f"rope_scaling.factor: expected >= 1, found {self.factor}; check "
          "the model's config.json."
      )
    if (
        self.kind == "llama3"
        and self.high_frequency_factor <= self.low_frequency_factor
    ):
      raise ValueError(
          "rope_scaling: expected high_frequency_factor > "
          f"low_frequency_factor, found {self.high_frequency_factor} and "
          f"{self.low_frequency_factor}; check the model's config.json."
      )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """One decoder-only network.

  A family names the block (norms, activation, biases); a new family adds its
  name to families.py, its block to decoder.py and only the sizes it needs
  here.

  Attributes:
    vocab_size: V, rows of the embedding (padding rows included).
    width: D, of the residual stream.
    layers: L.
    heads: N, query heads.
    kv_heads: K, key and value heads; divides `heads`.
    head_dim: H, even.
    mlp_width: F.
    rope_theta: base of the rotary frequencies.
    rope_scaling: see RopeScaling.
    norm_epsilon: added to the mean square in RMSNorm.
    tied_embeddings: the head is the transposed embedding.
    context_length: longest sequence in tokens that the model was made for.
    bos_id: beginning-of-sequence id, or None.
    eos_ids: ids that end a response.
    pad_id: id that fills rows; never read by the model.
    family: one of families.FAMILIES.
    sliding_window: tokens that a local layer reads, the own one included; 0
      where no layer is local.
    local_layers: per layer, whether it reads the window alone; () where none
      does (see `local_pattern`).
    local_rope_theta: base of the rotary frequencies of local layers, to which
      no rope_scaling applies; None: they are rotated as the others.
    score_divisor: attention scores are divided by its root; None: head_dim.
    score_softcap: c of c · tanh(score / c); 0: none.
    logit_softcap: likewise, of the logits.
    stored_dtype: dtype of most tensors of the files that the weights came
      from; an export returns to it where no bit is lost.
    stored_dtype_exceptions: (Hugging Face tensor name, dtype) of the others.
  """

  vocab_size: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp_width: int
  rope_theta: float = 10000.0
  rope_scaling: RopeScaling = RopeScaling()
  norm_epsilon: float = 1e-5
  tied_embeddings: bool = True
  context_length: int = 2048
  bos_id: int | None = None
  eos_ids: tuple[int, ...] = ()
  pad_id: int = 0
  family: str = "llama"
  sliding_window: int = 0
  local_layers: tuple[bool, ...] = ()
  local_rope_theta: float | None = None
  score_divisor: float | None = None
  score_softcap: float = 0.0
  logit_softcap: float = 0.0
  stored_dtype: str = "float32"
  stored_dtype_exceptions: tuple[tuple[str, str], ...] = ()

  def __post_init__(self):
    if self.family not in families.FAMILIES:
      raise ValueError(
          f"family: expected one of {', '.join(families.FAMILIES)}, found "
          f"{self.family!r}; choose a model of a supported family."
      )
    for name in (
        "vocab_size", "width", "layers", "heads", "kv_heads", "head_dim",
        "mlp_width", "context_length",
    ):
      if getattr(self, name) < 1:
        raise ValueError(
            f"{name}: expected >= 1, found {getattr(self, name)}; correct the "
            "model's config.json or preset."
        )
    if self.heads % self.kv_heads or self.head_dim % 2:
      raise ValueError(
          "expected kv_heads to divide heads and an even head_dim, found "
          f"heads {self.heads}, kv_heads {self.kv_heads}, head_dim "
          f"{self.head_dim}; correct the model's config.json or preset."
      )
    for token_id in (*self.eos_ids, self.pad_id, self.bos_id or 0):
      if not 0 <= token_id < self.vocab_size:
        raise ValueError(
            f"special ids: expected 0 <= id < {self.vocab_size}, found "
            f"{token_id}; check bos, eos and pad ids of the model."
        )
    self._check_windows()

  def _check_windows(self) -> None:
    local = any(self.local_layers)
    if local and len(self.local_layers) != self.layers:
      raise ValueError(
          f"local_layers: expected one entry for each of {self.layers} layers, "
          f"found {len(self.local_layers)}; correct the model's config.json or "
          "preset."
      )
    if local != (self.sliding_window > 0):
      raise ValueError(
          "sliding_window: expected more than 0 tokens where a layer is local, "
          f"and 0 where none is, found {self.sliding_window} with "
          f"{sum(self.local_layers)} local layers; correct the model's "
          "config.json or preset."
      )

  @property
  def block(self) -> families.Family:
    """What the family's blocks have."""
    return families.FAMILIES[self.family]

  def replace(self, **changes: Any) -> "ModelConfig":
    """Returns a copy with the given fields changed."""
    return dataclasses.replace(self, **changes)

  def with_stored_dtypes(self, dtypes: Mapping[str, str]) -> "ModelConfig":
    """Returns a copy that remembers the dtypes of its files.

    Args:
      dtypes: Hugging Face tensor name → numpy name of the dtype.
    """
    counts = collections.Counter(dtypes[name] for name in sorted(dtypes))
    common = counts.most_common(1)[0][0] if counts else "float32"
    others = {n: dtype for n, dtype in dtypes.items() if dtype != common}
    return self.replace(
        stored_dtype=common,
        stored_dtype_exceptions=tuple(sorted(others.items())),
    )


def local_pattern(layers: int, period: int) -> tuple[bool, ...]:
  """Returns local_layers where every `period`-th layer reads everything."""
  return tuple((layer + 1) % period != 0 for layer in range(layers))
