"""The model section of a config."""

import dataclasses

from jaxrl_llm.models import config as config_lib

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
      config_lib.preset(self.preset)
