"""presets.py: the sizes are those of the published models."""

import math

import jax
import pytest

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import presets

# Parameters that the model cards and checkpoints state, embeddings included
# (once where they are tied).
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma3-1b": 999_885_952,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_parameters_of_its_model(name):
  shapes = policy_lib.Policy(presets.preset(name)).shapes
  count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
  assert count == PUBLISHED[name]


def test_an_unknown_name_is_refused_with_the_known_ones():
  with pytest.raises(ValueError, match="qwen3-8b.*found 'qwen'"):
    presets.preset("qwen")
