"""Settings refuse what cannot be meant, in one line that names the key."""

import dataclasses

import pytest

from configs import base
from jaxrl_llm.training import settings


def test_defaults_and_keys_are_those_of_the_base_config():
  config = base.get_config().train
  given = settings.TrainSettings(**config.to_dict())
  assert given == settings.TrainSettings()
  names = {field.name for field in dataclasses.fields(given)}
  assert names == set(config.keys())


@pytest.mark.parametrize(
    "key, value",
    [
        ("epochs", 0),
        ("groups_per_batch", -1),
        ("warmup_updates", 2**31),
        ("total_updates", 2**31),
        ("learning_rate", -1e-3),
        ("learning_rate", float("inf")),
        ("weight_decay", float("inf")),
        ("beta2", 1.0),
        ("schedule", "cosin"),
        ("max_grad_norm", 0.0),
        ("max_bad_updates", 0),
        ("checkpoints_kept", 0),
        ("max_staleness", -1),
    ],
)
def test_a_value_out_of_range_names_its_key(key, value):
  with pytest.raises(ValueError, match=f"^train.{key}: expected .*{value}"):
    settings.TrainSettings(**{key: value})


def test_cosine_needs_its_length():
  with pytest.raises(ValueError, match="train.total_updates"):
    settings.TrainSettings(schedule="cosine")
  with pytest.raises(ValueError, match="train.total_updates"):
    settings.TrainSettings(
        schedule="cosine", total_updates=3, warmup_updates=3
    )


