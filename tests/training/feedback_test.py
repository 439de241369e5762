"""What feedback says of a group beyond counts."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxrl_llm.training import feedback


def test_the_gradient_is_bounded_as_said():
  """Against √Σ_t ‖e_y − π‖² of random distributions over 5 tokens."""
  draw = np.random.default_rng(0)
  for _ in range(50):
    probabilities = draw.dirichlet(np.full(5, 0.5), size=7)
    chosen = draw.integers(0, 5, 7)
    mask = draw.random(7) < 0.7
    kept = draw.uniform(-0.5, 0, 7)
    logprobs = np.log(probabilities[np.arange(7), chosen])
    rollout = SimpleNamespace(
        behavior_logprobs=logprobs - kept,
        log_kept_mass=kept,
        response_mask=mask,
    )
    exact = np.linalg.norm((np.eye(5)[chosen] - probabilities)[mask])
    found = feedback._gradient(rollout)
    own = probabilities[np.arange(7), chosen][mask]
    assert found == pytest.approx(np.linalg.norm(1 - own))
    assert found <= exact + 1e-12 <= np.sqrt(2) * found + 1e-9


def test_a_round_that_was_left_out_has_no_groups(tmp_path):
  path = feedback.path_of(tmp_path, 3)
  feedback.write_groups(path, 3, [])
  assert feedback.read(path) == []


def test_missing_feedback_is_one_line(tmp_path):
  with pytest.raises(ValueError, match="round_0003.json: expected") as error:
    feedback.read(feedback.path_of(tmp_path, 3))
  assert "\n" not in str(error.value)
