"""Ratios need log π: behavior_logprobs + log_kept_mass."""

import dumps
import numpy as np
import pytest

ROW = dumps.ROWS["trl"]


def test_temperature_must_be_known():
  assert "set import_rollouts.temperature" in dumps.refusal(
      ROW, "trl", temperature=None
  )
  row = ROW | {"temperature": 0.5}
  given = {"fields": "temperature=temperature", "logprobs": "tempered"}
  assert dumps.draft(row, "trl", **given).drawn.temperature == 0.5


@pytest.mark.parametrize(
    "given,said",
    [
        ({"temperature": 0.5}, "at temperature 0.5; set"),
        ({"top_p": 0.9}, "temperature 1, top_p 0.9; set"),
        ({"top_k": 5}, "temperature 1, top_k 5; set"),
        ({"min_p": 0.1}, "temperature 1, min_p 0.1; set"),
        ({"top_p": None, "top_k": None}, "top_p and top_k unknown; set"),
    ],
)
def test_what_they_are_of_is_never_guessed(given, said):
  line = dumps.refusal(ROW, "trl", **given)
  assert "nothing says what they are of" in line and said in line


def test_raw_ones_serve_at_temperature_one_alone():
  assert "raw ones say nothing" in dumps.refusal(
      ROW, "trl", temperature=0.5, logprobs="raw"
  )
  found = dumps.draft(ROW, "trl", logprobs="raw", top_p=0.9).drawn
  np.testing.assert_allclose(found.logprobs, dumps.LOGPROBS)
  assert found.sampling["top_p"] == 0.9


def test_sampled_ones_need_the_kept_mass():
  given = {"logprobs": "sampled", "top_p": 0.9}
  assert "log_kept_mass: at temperature 1, top_p 0.9" in dumps.refusal(
      ROW, "trl", **given
  )
  unsaid = {"logprobs": "sampled", "top_k": None}
  assert "set import_rollouts.top_p and top_k" in dumps.refusal(
      ROW, "trl", **unsaid
  )
  row = ROW | {"mass": [-0.125, 0.0]}
  given["fields"] = "log_kept_mass=mass"
  found = dumps.draft(row, "trl", **given).drawn
  np.testing.assert_allclose(found.logprobs, dumps.LOGPROBS)
  np.testing.assert_allclose(found.log_kept_mass, [-0.125, 0.0])
  # Of the whole vocabulary: the mass is taken off, the sum stays.
  given["logprobs"] = "tempered"
  found = dumps.draft(row, "trl", **given).drawn
  np.testing.assert_allclose(found.logprobs, [-0.375, -0.25])
  np.testing.assert_allclose(
      found.logprobs + found.log_kept_mass, dumps.LOGPROBS
  )
