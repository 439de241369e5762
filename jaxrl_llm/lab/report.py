"""Writes report.html and its PNGs for one run, or several side by side."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib

from jaxrl_llm.data import atomic
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.evaluation import table
from jaxrl_llm.lab import charts
from jaxrl_llm.lab import figures
from jaxrl_llm.lab import page
from jaxrl_llm.lab import sample_text
from jaxrl_llm.lab import samples
from jaxrl_llm.lab import sections
from jaxrl_llm.lab import workdir as workdir_lib
from jaxrl_llm.losses import objective

FILE = "report.html"
# Holds the PNGs, and what was counted of the shards.
FOLDER = "report"
_CACHE = "rollouts.json"
_SAMPLES = "Samples"


@dataclasses.dataclass(frozen=True)
class Texts:
  """Samples of a run's responses.

  Attributes:
    samples: in order; none where there is nothing to show.
    ratio: what their colours compare, as "live / proximal".
    tokenizer: of their tokens, or None.
    lead: what they are.
    absent: what is missing of them, and why.
  """

  samples: Sequence[samples.Sample]
  ratio: str
  tokenizer: tokenizer_lib.Tokenizer | None
  lead: str
  absent: Sequence[str]


def cache_of(folder: pathlib.Path) -> pathlib.Path:
  """Returns the file of counts in the folder that receives a report."""
  return folder / FOLDER / _CACHE


def check_place(folder: pathlib.Path) -> None:
  """Refuses a folder where something else has the names of a report.

  Raises:
    OSError: naming it.
  """
  if (folder / FOLDER).exists() and not (folder / FOLDER).is_dir():
    raise OSError(
        f"{folder / FOLDER}: expected a folder for the pictures of a report,"
        " found a file; move it away."
    )
  if (folder / FILE).is_dir():
    raise OSError(
        f"{folder / FILE}: expected a file or none, found a folder; move it"
        " away."
    )


def write(
    runs: Sequence[workdir_lib.Run],
    texts: Sequence[Texts],
    folder: pathlib.Path,
) -> pathlib.Path:
  """Writes the report; what is there before is replaced file by file.

  Args:
    runs: in order, at least one.
    texts: of each run.
    folder: receives report.html and report/*.png.

  Returns:
    The path of report.html.

  Raises:
    OSError: something else has their names.
  """
  check_place(folder)
  (folder / FOLDER).mkdir(parents=True, exist_ok=True)
  entries = [(each.anchor, each.title) for each in sections.ALL]
  body = [page.navigation([*entries, ("samples", _SAMPLES)])]
  body.append(_overview(runs))
  body += [_section(each, runs, folder) for each in sections.ALL]
  body.append(page.section("samples", _SAMPLES, _texts(runs, texts)))
  names = ", ".join(run.name for run in runs)
  lead = "What the working directory says of the run, as of "
  if len(runs) > 1:
    lead = "What the working directories say of the runs, as of "
  path = folder / FILE
  content = page.document(f"Report: {names}", lead + _as_of(runs), body)
  atomic.write_text(path, content)
  return path


def _as_of(runs: Sequence[workdir_lib.Run]) -> str:
  places = []
  for run in runs:
    steps = [record["step"] for record in run.of_kind("update")]
    place = f"update {steps[-1]}" if steps else "before the first update"
    places.append(place if len(runs) == 1 else f"{run.name}: {place}")
  return "; ".join(places) + "."


def _overview(runs: Sequence[workdir_lib.Run]) -> str:
  """The facts of each run, what could not be read, and its objective."""
  columns = [_facts(run) for run in runs]
  rows = [["", *(run.name for run in runs)]]
  rows += [[name, *(column[name] for column in columns)] for name in columns[0]]
  parts = [page.table(rows)]
  for run in runs:
    parts.append(page.notes([f"{run.name}: {line}" for line in run.notes]))
    if "config" in run.missing:
      parts.append(page.missing(f"{run.name}: {run.missing['config']}"))
      continue
    try:
      text = objective.describe(run.spec())
    except ValueError as error:
      parts.append(page.missing(f"{run.name}: {error}"))
      continue
    parts.append(page.folded(f"What the objective of {run.name} is", text))
  return "".join(parts)


def _facts(run: workdir_lib.Run) -> dict[str, str]:
  """Returns a column of the overview."""
  config = run.config
  model = config.get("model.path") or config.get("model.preset")
  planned = config.get("run.rounds")
  trained = f"{len(run.feedback)}"
  if planned is not None:
    trained += f" of {planned}"
  updates = run.of_kind("update")
  skipped = sum(bool(record.get("skipped")) for record in updates)
  made = f"{len(updates)}, {skipped} skipped" if skipped else f"{len(updates)}"
  sampled = sum(found.count for found in run.rollouts.values())
  return {
      "objective": str(config.get("objective.name") or "–"),
      "model": pathlib.Path(str(model)).name if model else "–",
      "allocation": str(config.get("allocation.name") or "–"),
      "curation": str(config.get("curation.name") or "–"),
      "seed": str(config.get("seed", "–")),
      "rounds trained on": trained,
      "updates": made,
      "responses sampled": f"{sampled} in {len(run.rollouts)} rounds",
      "evaluations": str(len(run.evaluations)),
  }


def _section(
    section: sections.Section,
    runs: Sequence[workdir_lib.Run],
    folder: pathlib.Path,
) -> str:
  """Draws the charts of a section; PNGs that have no chart any more go."""
  reasons = [
      {run.name: chart.missing(run) for run in runs} for chart in section.charts
  ]
  drawn = [
      _chart(chart, runs, absent, folder)
      for chart, absent in zip(section.charts, reasons)
  ]
  if all(reasons[0].values()) and all(each == reasons[0] for each in reasons):
    # Nothing at all, for one reason: it is said once.
    body = "".join(map(page.missing, _named(runs, reasons[0])))
  else:
    body = page.grid(drawn, wide=len(runs) > 1)
  if section.anchor == "accuracy":
    body += "".join(map(_evaluations, runs))
  return page.section(section.anchor, section.title, body)


def _chart(
    chart: charts.Chart,
    runs: Sequence[workdir_lib.Run],
    reasons: Mapping[str, str],
    folder: pathlib.Path,
) -> str:
  """Draws a chart of the runs that have no reason against it."""
  there = [run for run in runs if not reasons[run.name]]
  path = folder / FOLDER / f"{chart.name}.png"
  image = figures.render(chart, there) if there else None
  if image is None:
    path.unlink(missing_ok=True)
  else:
    atomic.write_bytes(path, image)
  return page.figure(
      chart.title,
      chart.caption,
      image,
      _named(runs, {run.name: chart.latest(run) for run in there}),
      _named(runs, {k: v for k, v in reasons.items() if v}),
  )


def _named(
    runs: Sequence[workdir_lib.Run], lines: Mapping[str, str]
) -> list[str]:
  """Puts the run's name before each line, where there are several."""
  if len(runs) == 1:
    return list(lines.values())
  return [f"{name}: {line}" for name, line in lines.items()]


def _evaluations(run: workdir_lib.Run) -> str:
  """The evaluations of a run as a table, in percent."""
  if not run.evaluations:
    return ""
  level = list(run.evaluations.values())[-1].settings.confidence
  rows = table.rows(run.evaluations, level)
  rows[0][0] = f"{run.name}: {rows[0][0]}, percent with {level:.0%} intervals"
  return page.table(rows)


def _texts(
    runs: Sequence[workdir_lib.Run], texts: Sequence[Texts]
) -> str:
  """The samples of all runs."""
  parts = [sample_text.LEGEND] if any(each.samples for each in texts) else []
  for run, each in zip(runs, texts, strict=True):
    for line in _named(runs, {run.name: each.lead} if each.lead else {}):
      parts.append(page.paragraph(line))
    for reason in each.absent:
      parts += map(page.missing, _named(runs, {run.name: reason}))
    parts.append(
        sample_text.render(each.samples, each.tokenizer, each.ratio)
    )
  return "".join(parts)
