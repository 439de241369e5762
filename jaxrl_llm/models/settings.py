"""The model section of a config."""

import dataclasses

from jaxrl_llm.models import frozen
from jaxrl_llm.models import lora as lora_lib
from jaxrl_llm.models import presets

COMPUTE_DTYPES = ("bfloat16", "float32")
REMATS = ("none", "products", "layers")


@dataclasses.dataclass(frozen=True)
class ModelSettings:
  """The model section of a config; see configs/base.py for each key."""

  path: str
  preset: str
  tokenizer: str
  compute_dtype: str
  remat: str
  lora_rank: int = 0
  lora_alpha: float | None = None
  lora_targets: str | None = None
  lora_base_dtype: str | None = None

  def __post_init__(self):
    for key, known in (
        ("compute_dtype", COMPUTE_DTYPES), ("remat", REMATS)
    ):
      if getattr(self, key) not in known:
        raise ValueError(
            f"model.{key}: expected one of {', '.join(known)}, found "
            f"{getattr(self, key)!r}; correct the config."
        )
    if not self.path:
      presets.preset(self.preset)
    self._check_adapters()

  def _check_adapters(self) -> None:
    if self.lora_rank:
      self.lora  # Refuses what does not fit.
      if self.frozen_dtype not in frozen.STORAGES:
        raise ValueError(
            "model.lora_base_dtype: expected one of "
            f"{', '.join(frozen.STORAGES)}, found {self.lora_base_dtype!r}; "
            "correct the config."
        )
      return
    for key in ("lora_alpha", "lora_targets", "lora_base_dtype"):
      if getattr(self, key) is not None:
        raise ValueError(
            f"model.{key}: expected a model.lora_rank above 0 beside it, found "
            "0; set the rank, or leave the key unset."
        )

  @property
  def lora(self) -> lora_lib.Lora | None:
    """The adapters, or None."""
    if not self.lora_rank:
      return None
    alpha, targets = self.lora_alpha, self.lora_targets
    return lora_lib.Lora(
        self.lora_rank,
        2.0 * self.lora_rank if alpha is None else alpha,
        lora_lib.TARGETS if targets is None else tuple(
            name.strip() for name in targets.split(",")
        ),
    )

  @property
  def frozen_dtype(self) -> str:
    """What the weights beside adapters are stored in."""
    if not self.lora_rank:
      return "float32"
    return self.lora_base_dtype or "bfloat16"

  def without_adapters(self) -> "ModelSettings":
    """Returns a copy that trains, or reads, the weights themselves."""
    return dataclasses.replace(
        self, lora_rank=0, lora_alpha=None, lora_targets=None,
        lora_base_dtype=None,
    )
