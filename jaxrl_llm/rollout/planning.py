"""Which responses lie in which shard: fixed before anything is sampled."""

from collections.abc import Sequence
import dataclasses
import hashlib

# The sample index of a greedy baseline, outside of the samples' own count.
BASELINE = -1


@dataclasses.dataclass(frozen=True)
class Piece:
  """Responses of one prompt that lie in one shard.

  Attributes:
    prompt: index of the prompt.
    first: j of the first sample.
    count: samples; j runs from `first`.
    baseline: a greedy response besides.
    continued: index of the unfinished response that goes on as the piece's
      one sample; None where all are drawn anew.
  """

  prompt: int
  first: int
  count: int
  baseline: bool = False
  continued: int | None = None

  @property
  def records(self) -> int:
    """Responses of the piece."""
    return self.count + self.baseline

  @property
  def sample_indices(self) -> list[int]:
    """The samples j in order, then the baseline."""
    samples = list(range(self.first, self.first + self.count))
    return samples + [BASELINE] * self.baseline


def plan(
    counts: Sequence[int],
    records_per_shard: int,
    baselines: bool = False,
    continued: Sequence[tuple[int, int]] = (),
) -> list[tuple[Piece, ...]]:
  """Lays responses that go on into shards, then prompts, in order.

  A group of new samples stays in one shard, so that its prompt is read once;
  only one that is larger than a shard is split.

  Args:
    counts: new samples of each prompt; 0 leaves the prompt out.
    records_per_shard: most records of a shard.
    baselines: also take a greedy response of each prompt.
    continued: (prompt, j) of each response that goes on.

  Returns:
    The pieces of each shard.

  Raises:
    ValueError: a negative count, or nothing to generate; or a prompt with new
      samples beside one that goes on, whose j might be the same.
  """
  nothing = not sum(counts) and not continued
  if not len(counts) or min(counts) < 0 or nothing:
    raise ValueError(
        "generation: expected counts >= 0 that ask for at least one response, "
        f"found {list(counts)[:8]}; raise generation.samples_per_prompt or "
        "generation.prompts_per_round."
    )
  busy = {prompt for prompt, _ in continued}
  both = [k for k, count in enumerate(counts) if count and k in busy]
  if both:
    raise ValueError(
        f"generation.window: expected no new samples of prompt {both[0]}, "
        "whose unfinished responses go on; pose it again when they have ended."
    )
  pieces = [
      Piece(prompt, j, 1, continued=number)
      for number, (prompt, j) in enumerate(continued)
  ]
  size = records_per_shard
  shards = [pieces[k : k + size] for k in range(0, len(pieces), size)]
  room = -len(pieces) % size
  for prompt, count in enumerate(counts):
    baseline = baselines and count > 0
    fits = count + baseline <= records_per_shard
    if fits and count + baseline > room:
      room = 0
    first = 0
    while first < count or baseline:
      if not room:
        shards.append([])
        room = records_per_shard
      taken = min(count - first, room - baseline)
      piece = Piece(prompt, first, taken, baseline)
      shards[-1].append(piece)
      first, room, baseline = first + taken, room - piece.records, False
  return [tuple(shard) for shard in shards]


def fingerprint(shards: Sequence[Sequence[Piece]]) -> str:
  """Hashes a plan; 16 hex digits."""
  text = repr([[dataclasses.astuple(x) for x in shard] for shard in shards])
  return hashlib.sha256(text.encode()).hexdigest()[:16]
