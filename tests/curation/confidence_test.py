"""The value of a question: golden cases."""

import curation_cases
import numpy as np
import pytest

from jaxrl_llm.curation import confidence
from jaxrl_llm.curation import episodes as episodes_lib

GOLDEN = curation_cases.GOLDEN["codapo"]["questions"]


def question(case):
  logprobs = [np.array(row) for row in case["token_logps"]]
  return episodes_lib.Episodes(
      record_ids=np.arange(len(logprobs)),
      group_ids=np.full(len(logprobs), 9),
      masks=[np.ones(row.size, bool) for row in logprobs],
      advantages=[np.float64(a) for a in case["grpo_adv"]],
      solved={9: float(np.mean(case["correct"]))},
      logprobs=logprobs,
  )


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
  case = GOLDEN[name]
  batch = question(case)
  certainty = confidence.confidence(batch.logprobs, batch.masks)
  assert certainty == pytest.approx(case["c"], rel=1e-9)
  assert confidence.value(certainty, 1 - case["d"]) == pytest.approx(
      case["v"], rel=1e-9
  )
  for offset, key in ((0.0, "adv_paper"), (0.1, "adv_code_delta0p1")):
    step = confidence.QuestionValue(weight_offset=offset)
    weights = curation_cases.of_episodes(step(batch))
    found = weights * np.array(case["grpo_adv"])
    np.testing.assert_allclose(found, case[key], rtol=1e-9)


def test_masked_tokens_and_empty_responses_say_nothing():
  logprobs = [np.array([-1.0, np.nan]), np.array([-50.0]), np.array([-3.0])]
  masks = [np.array([True, False]), np.array([False]), np.array([True])]
  assert confidence.confidence(logprobs, masks) == pytest.approx(np.exp(-2))


def test_a_question_has_its_own_value():
  batch = episodes_lib.Episodes(
      record_ids=np.arange(4),
      group_ids=np.array([5, 2, 5, 2]),
      masks=[np.ones(1, bool)] * 4,
      advantages=[1.0] * 4,
      solved={5: 0.5, 2: 0.25},
      logprobs=[np.array([x]) for x in (-0.1, -1.0, -0.3, -2.0)],
  )
  weights = curation_cases.of_episodes(confidence.QuestionValue()(batch))
  first, second = np.exp(-0.2), np.exp(-1.5) * 0.75
  np.testing.assert_allclose(weights, [first, second, first, second])
