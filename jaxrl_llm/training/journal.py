"""Keeps the numbers of updates while the next update runs."""

from collections.abc import Mapping
import dataclasses

import jax

from jaxrl_llm import types
from jaxrl_llm.training import curves
from jaxrl_llm.training import metrics


@dataclasses.dataclass(frozen=True)
class Entry:
  """An update that was dispatched; its arrays may still be computed.

  Attributes:
    step: its number, counted from 1, skipped updates included.
    sums: mergeable metric sums of the mini-batch, those by position among
      them.
    outcome: scalars of the update: updates (its number among the applied),
      skipped, bad_in_a_row, grad_norm, learning_rate.
    known: numbers that the host knew before, the round among them.
    tokens: tokens trained on.
  """

  step: int
  sums: Mapping[str, object]
  outcome: Mapping[str, jax.Array]
  known: Mapping[str, float]
  tokens: int


class Journal:
  """Writes the record of update n − 1 after update n is on its way."""

  def __init__(
      self,
      writer: metrics.MetricsWriter,
      bar: metrics.ProgressBar,
      max_bad_updates: int,
  ):
    """Starts empty.

    Args:
      writer: receives the records.
      bar: moves on by one per record.
      max_bad_updates: skipped updates in a row that stop the run.
    """
    self.bar = bar
    self._writer = writer
    self._max_bad_updates = max_bad_updates
    self._pending: Entry | None = None

  def add(self, entry: Entry) -> None:
    """Takes an entry, and writes the one before."""
    self.flush()
    self._pending = entry

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    """Writes a record that is already known, after what is pending."""
    self.flush()
    self._writer.write(step, kind, values)

  def flush(self) -> None:
    """Waits for the pending entry and writes it.

    Raises:
      FloatingPointError: too many updates in a row were not finite.
    """
    entry, self._pending = self._pending, None
    if entry is None:
      return
    sums, outcome = jax.device_get((entry.sums, entry.outcome))
    values = types.finish_metrics(sums)
    values |= {name: float(value) for name, value in outcome.items()}
    values |= entry.known
    shown = {
        name: values[key]
        for name, key in (("reward", "reward"), ("ratio", "ratio/mean"))
        if key in values
    }
    values["tokens_per_second"] = self.bar.advance(entry.tokens, shown)
    self._writer.write(entry.step, "update", values)
    place = {"round": entry.known["round"]}
    by_position = place | curves.finish(sums["positions"])
    self._writer.write_curves(entry.step, "positions", by_position)
    bad, update = int(outcome["bad_in_a_row"]), int(outcome["updates"])
    if bad >= self._max_bad_updates:
      raise FloatingPointError(
          f"train: {bad} updates in a row had a loss or gradient that is not"
          f" finite (after update {update}, step {entry.step}),"
          " train.max_bad_updates allows no more; the parameters are those of"
          " the last good update; lower train.learning_rate or check the"
          " rollouts with `verify`."
      )
