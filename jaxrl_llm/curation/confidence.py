"""Questions weighted by confidence and difficulty (CoDaPO, arXiv 2606.07950).

The second half of the paper, fresh rollouts of the most learnable questions,
is the choice of prompts: allocation.name=codapo.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from jaxrl_llm.curation import episodes as episodes_lib
from jaxrl_llm.losses import parts


def confidence(
    logprobs: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> float:
  """c = exp of the mean over responses of their mean log-prob per token.

  Args:
    logprobs: of the responses to one question, float [R], nats.
    masks: bool [R], True on trained tokens; responses without one are left
      out.
  """
  means = [
      np.mean(values[mask], dtype=np.float64)
      for values, mask in zip(logprobs, masks)
      if mask.any()
  ]
  return float(np.exp(np.mean(means)))


def value(certainty: float, solved: float) -> float:
  """v = c (1 − 4 (d − ½)²), d = 1 − the share of correct responses."""
  return certainty * (1.0 - 4.0 * (0.5 - solved) ** 2)


@dataclasses.dataclass(frozen=True)
class QuestionValue(episodes_lib.Step):
  """Weighs the responses to a question by v, a constant of the loss."""

  weight_offset: float = parts.key(
      0.0,
      "added to v; 0.1 keeps questions that all or none solve, for rewards"
      " that differ there",
      at_least=0.0,
  )
  confidence_from: str = parts.key(
      "proximal",
      "policy whose log-probs give c: proximal or behavior",
      choices=("proximal", "behavior"),
  )
  loss_average: str = parts.key(
      "question",
      "mean over questions of their token means (question), or the"
      " objective's own aggregation (objective)",
      choices=("question", "objective"),
  )

  words = "weighs questions by confidence × difficulty"

  @property
  def denominator(self) -> str:
    if self.loss_average == "question":
      return episodes_lib.QUESTION
    return episodes_lib.ORIGINAL

  @property
  def reads_logprobs(self) -> str:
    return self.confidence_from

  def __call__(self, episodes: episodes_lib.Episodes) -> list[np.ndarray]:
    weights = np.zeros(len(episodes))
    for places in episodes.groups():
      certainty = confidence(
          [episodes.logprobs[place] for place in places],
          [episodes.masks[place] for place in places],
      )
      solved = episodes.solved[int(episodes.group_ids[places[0]])]
      weights[places] = value(certainty, solved) + self.weight_offset
    return episodes.spread(weights)
