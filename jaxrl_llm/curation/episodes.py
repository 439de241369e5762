"""What a curation step sees of a rollout batch, and what all steps share.

A step turns episodes into a weight per response token. Weight 0 on every token
of an episode prunes it; weight 0 on all tokens from some place on cuts it
there. What is pruned or cut off is not computed in the update.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.losses import parts

# By what the weighted sums of an update are divided, and what they weigh.
SURVIVORS = "survivors"
ORIGINAL = "original"
QUESTION = "question"

# Keeps the draws of curation apart from the trainer's other noise.
_STREAM = 0x63757261


@dataclasses.dataclass(frozen=True)
class Episodes:
  """The N episodes of a rollout batch, on the host.

  Attributes:
    record_ids: int64 [N].
    group_ids: int64 [N], equal for the responses to one question.
    masks: N arrays bool [R], True on trained response tokens.
    advantages: N arrays, a number or float [R]; entries outside the mask are
      not read.
    solved: share of correct responses by group id, pruned ones counted.
    logprobs: N arrays float [R], nats, of the policy that the step names in
      `reads_logprobs`; None where it names none.
    scores: float64 [N], influence; None where the step does not ask.
    seed: of the run.
    step: updates applied or skipped before the batch; with `seed` and the
      record id it seeds every draw.
  """

  record_ids: np.ndarray
  group_ids: np.ndarray
  masks: Sequence[np.ndarray]
  advantages: Sequence[np.ndarray]
  solved: Mapping[int, float] = dataclasses.field(default_factory=dict)
  logprobs: Sequence[np.ndarray] | None = None
  scores: np.ndarray | None = None
  seed: int = 0
  step: int = 0

  def __len__(self) -> int:
    return len(self.record_ids)

  def groups(self) -> list[np.ndarray]:
    """Returns the places of each group's episodes, ascending."""
    _, numbers = np.unique(self.group_ids, return_inverse=True)
    return [
        np.flatnonzero(numbers == number)
        for number in range(numbers.max(initial=-1) + 1)
    ]

  def sizes(self) -> np.ndarray:
    """float64 [N]: mean |A| over the trained tokens of each episode."""
    return np.array([
        np.abs(np.broadcast_to(values, mask.shape)[mask]).mean(
            dtype=np.float64
        )
        for values, mask in zip(self.advantages, self.masks)
    ])

  def uniforms(self) -> np.ndarray:
    """float64 [N] in [0, 1): one draw per episode.

    A draw depends on seed, step and record id alone, never on what else the
    batch holds.
    """
    root = jax.random.fold_in(jax.random.key(self.seed), _STREAM)
    root = jax.random.fold_in(root, self.step)
    ids = np.asarray(self.record_ids, np.int64).view(np.uint64)
    low, high = (
        (half & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        for half in (ids, ids >> np.uint64(32))
    )

    def draw(low, high):
      key = jax.random.fold_in(jax.random.fold_in(root, low), high)
      return jax.random.uniform(key, dtype=jnp.float32)

    return np.asarray(jax.vmap(draw)(low, high), np.float64)

  def spread(self, values: np.ndarray) -> list[np.ndarray]:
    """Gives each response token the value of its episode, N × float64 [R]."""
    return [
        np.full(mask.shape, value, np.float64)
        for value, mask in zip(values, self.masks)
    ]


class Step(parts.Part):
  """Base of all steps; a step is called with Episodes.

  It returns N arrays float64 [R], the weights of the response tokens.

  Attributes:
    denominator: SURVIVORS divides the sums of a mini-batch by what is left of
      it, and weighs the policy loss alone. ORIGINAL divides by what the
      mini-batch held before, and weighs every term: survivors stand for what
      was pruned. QUESTION is ORIGINAL with the mean over questions of each
      question's token mean in place of the objective's aggregation.
    truncates: whether it may keep a prefix of a response.
    unbiased: whether the expected gradient is that of the whole mini-batch.
    reads_logprobs: policy whose log-probs it reads: proximal, behavior, or
      empty.
    reads_scores: whether it reads influence scores.
  """

  denominator = SURVIVORS
  truncates = False
  unbiased = False
  reads_logprobs = ""
  reads_scores = False
