"""Settings of an import, and paths into rows."""

import pytest

from jaxrl_llm.data import layouts


@pytest.mark.parametrize(
    "given,expected",
    [
        ({"format": "verlx"}, "import_rollouts.format: expected one of"),
        ({"fields": "rewards=x"}, "the nearest field is 'reward'"),
        ({"fields": "reward"}, "expected field=path"),
        ({"logprobs": "warm"}, "import_rollouts.logprobs: expected one of"),
        ({"missing_eos": "eos"}, "import_rollouts.missing_eos: expected"),
        ({"temperature": 0.0}, "import_rollouts.temperature: expected"),
        ({"round": -1}, "import_rollouts.round: expected"),
        ({"recompute_logprobs": True, "drawn_by_model": True}, "set one"),
        ({"format": "jaxrl_llm", "top_k": 3}, "import_rollouts.top_k: a file"),
    ],
)
def test_settings_that_do_not_fit_are_named(given, expected):
  with pytest.raises(ValueError, match=expected):
    layouts.ImportSettings(**({"format": "trl"} | given))


def test_fields_lie_over_the_layout():
  fields = "reward=meta.scores.1, logprobs="
  settings = layouts.ImportSettings(format="trl", fields=fields)
  paths = settings.paths()
  assert paths["reward"] == "meta.scores.1" and "logprobs" not in paths
  row = {"meta": {"scores": [0.0, 0.5]}}
  assert layouts.lookup(row, paths["reward"], 0) == 0.5
  assert layouts.lookup(row, "meta.scores.*", 1) == 0.5
  for missing in ("meta.scores.2", "meta.scores.x", "meta.x", "x.y"):
    assert layouts.lookup(row, missing, 0) is None
