"""What the parts of an objective share: keyed fields and their checks.

A part is a small frozen dataclass. Its fields carry the names of the config
keys under `objective.`, their unit and meaning, and the values they accept.
The steps of curation are parts too, with keys under `curation.`.
A number may be replaced by a traced scalar (`Terms.controls`), so parts never
branch on the value of a number, only on whether it is None.
"""

import dataclasses
import math
import typing
from typing import Any


class Part:
  """Base of all parts: no idle keys."""

  def idle_keys(self) -> frozenset[str]:
    """Keys of this part that nothing reads under its other values."""
    return frozenset()


def key(
    default: Any,
    doc: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
  """Declares a field that is a config key.

  Args:
    default: value of the part when nothing else is said.
    doc: unit and meaning, one line.
    above: exclusive lower bound.
    at_least: inclusive lower bound.
    at_most: inclusive upper bound.
    choices: the accepted strings.
  """
  metadata = dict(
      doc=doc, above=above, at_least=at_least, at_most=at_most, choices=choices
  )
  return dataclasses.field(default=default, metadata=metadata)


def keys(part: Any) -> dict[str, tuple[type, str]]:
  """Maps each key of a part (class or instance) to its type and meaning."""
  hints = typing.get_type_hints(part if isinstance(part, type) else type(part))
  return {
      field.name: (_scalar_type(hints[field.name]), field.metadata["doc"])
      for field in dataclasses.fields(part)
  }


def _scalar_type(hint: Any) -> type:
  """Strips `| None` from an annotation."""
  options = [t for t in typing.get_args(hint) if t is not type(None)]
  return options[0] if options else hint


def check(part: Any, section: str = "objective") -> None:
  """Raises ValueError where a field of the part holds what it may not."""
  for field in dataclasses.fields(part):
    value = getattr(part, field.name)
    if value is None:
      continue
    _check_value(f"{section}.{field.name}", value, field.metadata)


def _check_value(name: str, value: Any, rule: Any) -> None:
  """Raises ValueError where one value breaks its rule."""
  if rule["choices"] and value not in rule["choices"]:
    options = ", ".join(rule["choices"])
    raise ValueError(f"{name}: expected one of {options}; found {value!r}.")
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"{name}: expected a finite number, found {value}.")
  for sign, bound, broken in (
      (">", rule["above"], lambda b: value <= b),
      (">=", rule["at_least"], lambda b: value < b),
      ("<=", rule["at_most"], lambda b: value > b),
  ):
    if bound is not None and broken(bound):
      raise ValueError(
          f"{name}: expected {sign} {bound:g}, found {value}."
      )


def convert(
    name: str, value: Any, kind: type, section: str = "objective"
) -> Any:
  """Returns a config value as the type of its key, or raises ValueError."""
  if kind is float and type(value) is int:
    return float(value)
  if type(value) is not kind:
    raise ValueError(
        f"{section}.{name}: expected {kind.__name__}, found {value!r} of type "
        f"{type(value).__name__}."
    )
  return value
