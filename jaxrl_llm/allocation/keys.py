"""Keys of the configuration as fields of an allocator, and their checks."""

import dataclasses
import difflib
from collections.abc import Mapping
import math
import typing
from typing import Any

from jaxrl_llm.allocation import interface


def key(
    default: Any,
    doc: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
  """Declares a field that is a key under `allocation.`.

  Args:
    default: its value when nothing else is said.
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


def kinds(part: type[interface.Allocator]) -> dict[str, type]:
  """Maps each key of an allocator to the type of its value."""
  hints = typing.get_type_hints(part)
  found = {}
  for field in dataclasses.fields(part):
    options = typing.get_args(hints[field.name]) or (hints[field.name],)
    found[field.name] = options[0]
  return found


def override(
    allocator: interface.Allocator, fields: Mapping[str, Any]
) -> interface.Allocator:
  """Returns the allocator with some keys set.

  Raises:
    ValueError: a key that it does not read, a value of the wrong type or out
      of bounds; one line that names it.
  """
  known = kinds(type(allocator))
  values = {}
  for name, value in fields.items():
    if name not in known:
      near = difflib.get_close_matches(name, known, 1, 0.0)
      reads = f"allocation.{near[0]} is the nearest" if near else "none"
      raise ValueError(
          f"allocation.{name}: {type(allocator).__name__} does not read it, of"
          f" what it reads {reads}; unset it, or choose another"
          " allocation.name."
      )
    values[name] = _convert(name, value, known[name])
  changed = dataclasses.replace(allocator, **values)
  for field in dataclasses.fields(changed):
    value = getattr(changed, field.name)
    if value is not None:
      _check(field.name, value, field.metadata)
  return changed


def _convert(name: str, value: Any, kind: type) -> Any:
  if kind is float and type(value) is int:
    return float(value)
  if type(value) is not kind:
    raise ValueError(
        f"allocation.{name}: expected {kind.__name__}, found {value!r} of type"
        f" {type(value).__name__}."
    )
  return value


def _check(name: str, value: Any, rule: Mapping[str, Any]) -> None:
  """Raises ValueError where a value breaks its rule."""
  if rule["choices"] and value not in rule["choices"]:
    raise ValueError(
        f"allocation.{name}: expected one of {', '.join(rule['choices'])};"
        f" found {value!r}."
    )
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(
        f"allocation.{name}: expected a finite number, found {value}."
    )
  for sign, bound, broken in (
      (">", rule["above"], lambda b: value <= b),
      (">=", rule["at_least"], lambda b: value < b),
      ("<=", rule["at_most"], lambda b: value > b),
  ):
    if bound is not None and broken(bound):
      raise ValueError(
          f"allocation.{name}: expected {sign} {bound:g}, found {value}."
      )
