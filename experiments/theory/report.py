"""What the programs of this folder share: claims, their print, pictures."""

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

FOLDER = pathlib.Path("runs/theory")


@dataclasses.dataclass(frozen=True)
class Claim:
  """One number that a statement predicts.

  Attributes:
    text: what is measured.
    expected: what the statement says of it.
    measured: what came out.
    holds: whether the two agree.
  """

  text: str
  expected: str
  measured: float
  holds: bool


@dataclasses.dataclass(frozen=True)
class Line:
  """One curve: points, its label and matplotlib's style."""

  label: str
  x: np.ndarray
  y: np.ndarray
  style: str = "-"


@dataclasses.dataclass(frozen=True)
class Panel:
  """Curves that share axes."""

  title: str
  x_label: str
  lines: Sequence[Line]
  x_scale: str = "linear"
  y_scale: str = "linear"


@dataclasses.dataclass(frozen=True)
class Report:
  """Everything that a program found."""

  claims: Sequence[Claim]
  panels: Sequence[Panel]

  @property
  def holds(self) -> bool:
    """Whether every claim does."""
    return all(claim.holds for claim in self.claims)

  def failed(self) -> list[str]:
    """The texts of the claims that do not hold."""
    return [claim.text for claim in self.claims if not claim.holds]


def equal(text: str, measured: Any, expected: Any, tolerance: float) -> Claim:
  """Measured equals expected within an absolute tolerance.

  For arrays the entry that is furthest off is shown.
  """
  measured, expected = np.broadcast_arrays(
      np.asarray(measured, float), np.asarray(expected, float)
  )
  gaps = np.abs(measured - expected)
  worst = np.unravel_index(np.argmax(gaps), gaps.shape)
  return Claim(
      text,
      f"= {expected[worst]:.6g} ± {tolerance:.1g}",
      float(measured[worst]),
      bool(np.all(gaps <= tolerance)),
  )


def at_most(text: str, measured: Any, bound: float) -> Claim:
  """The largest measured entry is at most `bound`."""
  largest = float(np.max(measured))
  return Claim(text, f"≤ {bound:.6g}", largest, largest <= bound)


def above(text: str, measured: Any, bound: float) -> Claim:
  """The least measured entry exceeds `bound`."""
  least = float(np.min(measured))
  return Claim(text, f"> {bound:.6g}", least, least > bound)


def in_float64(check: Callable[..., Report]) -> Callable[..., Report]:
  """Runs a check in float64, where exact statements hold to 1e-12."""

  @functools.wraps(check)
  def wrapped(*args: Any, **kwargs: Any) -> Report:
    with jax.enable_x64(True):
      return check(*args, **kwargs)

  return wrapped


def show(claims: Sequence[Claim]) -> None:
  """Prints one line per claim: verdict, text, expected and measured."""
  width = max(len(claim.text) for claim in claims)
  for claim in claims:
    verdict = "ok  " if claim.holds else "FAIL"
    print(
        f"{verdict}  {claim.text:<{width}}  expected {claim.expected:<22}"
        f"  measured {claim.measured:.6g}"
    )


def draw(panels: Sequence[Panel], path: pathlib.Path) -> pathlib.Path:
  """Writes the panels, one under the other, as a PNG."""
  import matplotlib  # Slow to import; tests of the claims need none of it.

  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, axes = pyplot.subplots(
      len(panels), 1, figsize=(8, 3.4 * len(panels)), layout="constrained",
      squeeze=False,
  )
  for axis, panel in zip(axes[:, 0], panels, strict=True):
    for line in panel.lines:
      axis.plot(line.x, line.y, line.style, label=line.label, markersize=4)
    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.set_xlabel(panel.x_label)
    axis.set_xscale(panel.x_scale)
    axis.set_yscale(panel.y_scale)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=120)
  pyplot.close(figure)
  return path


def main(
    name: str, check: Callable[[], Report], argv: Sequence[str] | None = None
) -> int:
  """Runs a check, prints its claims, draws it.

  Args:
    name: stem of the PNG under runs/theory/.
    check: the program's check at its full size.
    argv: command line without the program's name; None reads sys.argv.

  Returns:
    Exit code: 0 when every claim holds, else 1.
  """
  parser = argparse.ArgumentParser(prog=name)
  parser.add_argument(
      "--png", type=pathlib.Path, default=FOLDER / f"{name}.png",
      help="picture to write",
  )
  flags = parser.parse_args(argv)
  found = check()
  show(found.claims)
  print(f"picture: {draw(found.panels, flags.png)}")
  return 0 if found.holds else 1
