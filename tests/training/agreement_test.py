"""The step-0 report names what the pattern of log-ratios points to."""

import dataclasses

import numpy as np
import pytest
import tiny_run

from jaxrl_llm.training import agreement
from jaxrl_llm.training import recorded

RESPONSE = 15


def make(gaps, masked=()):
  """Returns one record and the trainer's log-probs, `gaps` above it."""
  mask = np.ones(RESPONSE, bool)
  mask[list(masked)] = False
  rollout = dataclasses.replace(
      tiny_run.make_rollouts(1, 1)[0],
      response_tokens=np.zeros(RESPONSE, np.int32),
      response_mask=mask,
      behavior_logprobs=np.full(RESPONSE, -1.5, np.float32),
      log_kept_mass=np.full(RESPONSE, -0.5, np.float32),
  )
  return recorded.read([rollout], [0]), [-2.0 + np.asarray(gaps, np.float64)]


def report(gaps, stale=False, dtype="float32", **kwargs):
  return agreement.report(
      *make(gaps, **kwargs), stale=stale, compute_dtype=dtype
  )


def test_numbers_by_position():
  """Positions 0 | 1-2 | 3-6 | 7-14; position 4 is a tool token."""
  gaps = np.zeros(RESPONSE)
  gaps[[0, 2, 4, 14]] = [0.1, -0.2, 99.0, 0.4]
  found = report(gaps, masked=[4])
  assert [(b.first, b.last, b.count) for b in found.bins] == [
      (0, 0, 1), (1, 2, 2), (3, 6, 3), (7, 14, 8)
  ]
  means = [b.mean for b in found.bins]
  np.testing.assert_allclose(means, [0.1, -0.1, 0, 0.05], atol=1e-12)
  np.testing.assert_allclose(
      [b.mean_abs for b in found.bins], [0.1, 0.1, 0, 0.05], atol=1e-12
  )
  assert found.count == 14
  assert found.largest == pytest.approx(0.4)
  assert found.mean == pytest.approx(0.3 / 14)
  ratios = 11 + np.exp([0.1, -0.2, 0.4]).sum()
  assert found.mean_ratio == pytest.approx(ratios / 14)
  assert len(found.lines()) == 2 + 4 + 1
  assert "report: 14 tokens of 1 record, log" in found.lines()[0]


@pytest.mark.parametrize(
    "gaps, changes, words",
    [
        (np.full(RESPONSE, 1e-5), {}, "agree to float32"),
        (np.full(RESPONSE, 1e-5), {"stale": True}, "staleness"),
        (np.full(RESPONSE, 0.01), {"dtype": "bfloat16"}, "bfloat16"),
        ([1.0] + [0.01] * 14, {}, "seam of prompt"),
        (np.geomspace(1e-4, 1, RESPONSE), {}, "grows with position"),
        (np.full(RESPONSE, -0.3), {}, "one sign"),
        ([0.3, -0.3, 0.3] * 5, {}, "model differs"),
    ],
)
def test_the_cause_follows_the_pattern(gaps, changes, words):
  assert words in report(gaps, **changes).cause
