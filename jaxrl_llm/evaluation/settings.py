"""How policies are evaluated: the `evaluation` section of the configuration."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
  """The `evaluation` section of the configuration; see configs/base.py."""

  samples: int = 4
  temperature: float = 1.0
  top_p: float = 1.0
  pass_at: str = "1,4"
  checkpoint: str = ""
  confidence: float = 0.95
  every_rounds: int = 0

  def __post_init__(self):
    for name, low in (("samples", 1), ("temperature", 0), ("every_rounds", 0)):
      if not low <= getattr(self, name) < math.inf:
        raise ValueError(
            f"evaluation.{name}: expected a finite number >= {low}, found"
            f" {getattr(self, name)}."
        )
    if not 0 < self.top_p <= 1:
      raise ValueError(
          f"evaluation.top_p: expected in (0, 1], found {self.top_p}."
      )
    if not 0 < self.confidence < 1:
      raise ValueError(
          "evaluation.confidence: expected a level in (0, 1), found"
          f" {self.confidence}."
      )
    for k in self.ks:
      if not 1 <= k <= self.samples:
        raise ValueError(
            f"evaluation.pass_at: expected k from 1 to evaluation.samples ="
            f" {self.samples}, found {k}; lower it or raise the samples."
        )

  @property
  def ks(self) -> tuple[int, ...]:
    """The k of pass@k, ascending."""
    try:
      parts = [part for part in self.pass_at.split(",") if part.strip()]
      return tuple(sorted(set(map(int, parts))))
    except ValueError as error:
      raise ValueError(
          "evaluation.pass_at: expected numbers separated by commas, found"
          f" {self.pass_at!r}."
      ) from error
