"""presets.py: the sizes are those of the published models."""

import math

import jax
import pytest

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import presets

# Parameters that the model cards and checkpoints state, embeddings included
# (once where they are tied); each follows from the sizes of the config.json.
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


# What no count shows, as the config.json of each states it (the instruct models'
# where they differ); the tables of LitGPT (litgpt/config.py) and, for Qwen3 and
# Gemma 3, of Tunix (tunix/models) say the same of heads, bases and epsilon.
# Heads, kv-heads, their width, base of the rotary frequencies, epsilon, context.
STATED = {
    "smollm2-135m": (9, 3, 64, 1e5, 1e-5, 8192),
    "llama3.1-8b": (32, 8, 128, 5e5, 1e-5, 131072),
    "llama3.1-70b": (64, 8, 128, 5e5, 1e-5, 131072),
    "qwen2.5-0.5b": (14, 2, 64, 1e6, 1e-6, 32768),
    "qwen2.5-1.5b": (12, 2, 128, 1e6, 1e-6, 32768),
    "qwen2.5-7b": (28, 4, 128, 1e6, 1e-6, 32768),
    "qwen3-0.6b": (16, 8, 128, 1e6, 1e-6, 40960),
    "qwen3-4b": (32, 8, 128, 1e6, 1e-6, 40960),
    "qwen3-8b": (32, 8, 128, 1e6, 1e-6, 40960),
    "qwen3-14b": (40, 8, 128, 1e6, 1e-6, 40960),
    "qwen3-32b": (64, 8, 128, 1e6, 1e-6, 40960),
    "gemma3-1b": (4, 1, 256, 1e6, 1e-6, 32768),
}


@pytest.mark.parametrize("name", STATED)
def test_a_preset_says_what_no_count_shows(name):
  config = presets.preset(name)
  found = (
      config.heads, config.kv_heads, config.head_dim, config.rope_theta,
      config.norm_epsilon, config.context_length,
  )
  assert found == STATED[name]


def test_windows_of_gemma3():
  config = presets.preset("gemma3-1b")
  # Five local layers, one that reads everything, and so on; 26 in all.
  assert config.local_layers == ((True,) * 5 + (False,)) * 4 + (True,) * 2
  assert (config.sliding_window, config.local_rope_theta) == (512, 1e4)
  # Scores are divided by the root of the head's width.
  assert config.score_divisor == config.head_dim


def test_an_unknown_name_is_refused_with_the_known_ones():
  with pytest.raises(ValueError, match="qwen3-8b.*found 'qwen'"):
    presets.preset("qwen")
