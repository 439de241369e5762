"""Supervised fine-tuning on graded responses: which of them are imitated."""

import dataclasses

import jax

from jaxrl_llm.losses import advantages
from jaxrl_llm.losses import parts

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Imitation(advantages.Advantage):
  """A = 1[R > threshold]; responses with A = 0 are as good as not there.

  With the surrogate log_prob the loss is the negative log-likelihood of the
  imitated responses, averaged over these alone (`Spec.selects`).
  """

  imitate_above: float = parts.key(
      0.0,
      "reward above which a response is imitated; the others enter neither"
      " the loss nor its denominator",
  )

  def __call__(self, episodes: advantages.Episodes) -> Array:
    chosen = episodes.valid & (episodes.totals() > self.imitate_above)
    return chosen.astype(episodes.scores.dtype)

  def describe(self) -> str:
    return (
        f"A = 1 where R > {self.imitate_above:g}; other responses enter "
        "neither the loss nor its denominator"
    )


ADVANTAGES = {"imitation": Imitation}
