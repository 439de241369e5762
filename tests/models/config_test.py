"""Configurations that cannot work are refused in one line."""

import pytest

from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import presets
from jaxrl_llm.models import settings as settings_lib

TINY = presets.preset("tiny")


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"family": "mamba"}, "family"),
        ({"width": 0}, "width"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"eos_ids": (272,)}, "272"),
    ],
)
def test_model_config_names_what_is_wrong(changes, word):
  with pytest.raises(ValueError, match=word) as error:
    TINY.replace(**changes)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "arguments, word",
    [
        (("longrope",), "longrope"),
        (("linear", 0.5), "factor"),
        (("llama3", 8.0, 4.0, 4.0), "high_frequency_factor"),
    ],
)
def test_rope_scaling_names_what_is_wrong(arguments, word):
  with pytest.raises(ValueError, match=word):
    config_lib.RopeScaling(*arguments)


@pytest.mark.parametrize(
    "key, value",
    [("compute_dtype", "float16"), ("remat", "all"), ("preset", "huge")],
)
def test_settings_name_the_key(key, value):
  good = dict(path="", preset="tiny", tokenizer="",
              compute_dtype="bfloat16", remat="layers")
  settings_lib.ModelSettings(**good)
  with pytest.raises(ValueError, match=f"model.{key}.*{value}"):
    settings_lib.ModelSettings(**good | {key: value})


def test_smollm2_has_its_published_parameter_count():
  """134,515,008 = V·D + L·(4 projections + 3 MLP + 2 norms) + D."""
  c = presets.preset("smollm2-135m")
  attention = 2 * c.width * c.heads * c.head_dim
  attention += 2 * c.width * c.kv_heads * c.head_dim
  layer = attention + 3 * c.width * c.mlp_width + 2 * c.width
  assert c.vocab_size * c.width + c.layers * layer + c.width == 134_515_008
