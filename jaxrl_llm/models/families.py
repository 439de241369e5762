"""What the blocks of a family have that those of Llama have not."""

from collections.abc import Mapping
import dataclasses


@dataclasses.dataclass(frozen=True)
class Family:
  """The block of a family; sizes and numbers are in ModelConfig.

  Attributes:
    biased_heads: queries, keys and values have a bias.
    normed_heads: queries and keys are normed over H, before rotation.
    offset_norms: norms multiply by 1 + their weight.
    post_norms: what attention and MLP give is normed too, before it is added.
    gelu: the MLP's gate is the tanh form of GELU, not SiLU.
    scaled_embedding: rows of the embedding are multiplied by √D.
  """

  biased_heads: bool = False
  normed_heads: bool = False
  offset_norms: bool = False
  post_norms: bool = False
  gelu: bool = False
  scaled_embedding: bool = False


# Names are the model_type of config.json.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "qwen2": Family(biased_heads=True),
    "qwen3": Family(normed_heads=True),
    "gemma2": Family(
        offset_norms=True, post_norms=True, gelu=True, scaled_embedding=True
    ),
    "gemma3_text": Family(
        normed_heads=True, offset_norms=True, post_norms=True, gelu=True,
        scaled_embedding=True,
    ),
}
