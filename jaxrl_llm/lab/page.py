"""The page around the sections: one file, no script, nothing to fetch."""

import base64
from collections.abc import Sequence
import html

# Nothing but what is in the file: a browser refuses the rest.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light; --ink: #1f2933; --soft: #52606d;
  --line: #d5dae1; --ground: #fbfaf8; --card: #ffffff; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 Charter, "Bitstream Charter", "Source Serif 4", Georgia,
  serif; }
main { max-width: 78rem; margin: 0 auto; padding: 2.5rem 1.5rem 5rem; }
h1 { font-size: 2.1rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.4rem; margin: 3.2rem 0 1rem; padding-top: .7rem;
  border-top: 2px solid var(--ink); }
h3 { font: 600 .98rem/1.35 system-ui, sans-serif; margin: 0; }
nav, table, figcaption, .facts, .legend, .missing, .notes, summary {
  font-family: system-ui, sans-serif; font-size: .85rem; }
nav a { margin-right: 1.1rem; color: #00558a; }
.lead { color: var(--soft); margin: 0 0 1rem; }
.charts { display: grid; gap: 1.4rem;
  grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr));
  align-items: start; }
.charts.wide { grid-template-columns: 1fr; }
figure { margin: 0; padding: 1rem 1.1rem; background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; }
figure img { display: block; width: 100%; height: auto; max-width: 60rem;
  margin: .6rem auto 0; }
figcaption { color: var(--soft); margin-top: .2rem; }
.latest { color: var(--ink); margin: .5rem 0 0; }
.missing, .notes li { background: #f3efe6; border-left: 4px solid #8a6d1f;
  padding: .5rem .8rem; margin: .6rem 0 0; }
.notes { list-style: none; padding: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; }
pre { font: .8rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; background: var(--card);
  border: 1px solid var(--line); padding: 1rem; border-radius: 6px; }
summary { cursor: pointer; font-weight: 600; margin: .8rem 0; }
.sample { background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: .9rem 1.1rem; margin: 0 0 1rem; }
.prompt { color: var(--soft); white-space: pre-wrap; margin: 0 0 .5rem;
  max-height: 12rem; overflow-y: auto; }
.response { font: 1.05rem/2.2 ui-monospace, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 .5rem; }
.facts, .legend { color: var(--soft); margin: 0; }
.legend { margin-bottom: 1rem; line-height: 2; }
.t { padding: .1em .1em; margin: 0 2px; border: 0 solid transparent; }
.off { color: #7b8794; }
.u1, .u2, .u3, .u4 { border-top-color: #0072b2; }
.u1 { border-top-width: 1px; background: #edf5fb; }
.u2 { border-top-width: 2px; background: #d3e8f5; }
.u3 { border-top-width: 3px; background: #b5d9ee; }
.u4 { border-top-width: 4px; background: #93c7e6; }
.d1, .d2, .d3, .d4 { border-bottom-color: #c44e00; }
.d1 { border-bottom-width: 1px; background: #fdf1e9; }
.d2 { border-bottom-width: 2px; background: #fadfcc; }
.d3 { border-bottom-width: 3px; background: #f6c9a9; }
.d4 { border-bottom-width: 4px; background: #f1b184; }
.cut { outline: 2px solid var(--ink); border-radius: 2px; }
@media print { figure, .sample { break-inside: avoid; } nav { display: none; } }
"""


def document(title: str, lead: str, body: Sequence[str]) -> str:
  """Returns the whole file.

  Args:
    title: plain text.
    lead: plain text below it.
    body: HTML of the parts, in order.
  """
  return (
      '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
      f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
      '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
      f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
      f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
      f"<h1>{html.escape(title)}</h1>\n"
      f'<p class="lead">{html.escape(lead)}</p>\n'
      + "\n".join(body)
      + "\n</main>\n</body>\n</html>\n"
  )


def navigation(entries: Sequence[tuple[str, str]]) -> str:
  """Links (anchor, title) of the sections."""
  links = "".join(
      f'<a href="#{anchor}">{html.escape(title)}</a> '
      for anchor, title in entries
  )
  return f"<nav>{links}</nav>"


def section(anchor: str, title: str, body: str) -> str:
  """A heading and what is under it, HTML."""
  return (
      f'<section><h2 id="{anchor}">{html.escape(title)}</h2>\n{body}</section>'
  )


def grid(figures: Sequence[str], wide: bool) -> str:
  """Lays figures side by side, or below each other where they are wide."""
  name = "charts wide" if wide else "charts"
  return f'<div class="{name}">\n' + "\n".join(figures) + "\n</div>\n"


def figure(
    title: str, caption: str, image: bytes | None, said: Sequence[str],
    absent: Sequence[str],
) -> str:
  """A chart with its words.

  Args:
    title: plain text, as all the others.
    caption: how to read it.
    image: PNG, or None where there is nothing to draw.
    said: the newest numbers, also the text for those who do not see it.
    absent: what is missing, and why.
  """
  parts = [
      f"<h3>{html.escape(title)}</h3>",
      f"<figcaption>{html.escape(caption)}</figcaption>",
  ]
  if image is not None:
    text = html.escape(f"{title}: {'; '.join(said)}")
    data = base64.b64encode(image).decode("ascii")
    parts.append(f'<img alt="{text}" src="data:image/png;base64,{data}">')
  parts += [f'<p class="facts latest">{html.escape(line)}</p>' for line in said]
  parts += map(missing, absent)
  return "<figure>" + "\n".join(parts) + "</figure>"


def paragraph(text: str) -> str:
  """A line of plain text."""
  return f"<p>{html.escape(text)}</p>"


def missing(reason: str) -> str:
  """Says what is missing, and why."""
  return f'<p class="missing">{html.escape(reason)}</p>'


def notes(lines: Sequence[str]) -> str:
  """Lists what could not be read; nothing where there is none."""
  if not lines:
    return ""
  items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
  return f'<ul class="notes">{items}</ul>\n'


def table(rows: Sequence[Sequence[str]]) -> str:
  """A table whose first row and column are headings."""
  lines = []
  for number, row in enumerate(rows):
    cells = [
        f"<{tag}>{html.escape(cell)}</{tag}>"
        for place, cell in enumerate(row)
        for tag in ["td" if number and place else "th"]
    ]
    lines.append(f"<tr>{''.join(cells)}</tr>")
  return f'<div class="scroll"><table>{"".join(lines)}</table></div>\n'


def folded(summary: str, text: str) -> str:
  """Plain text that opens when it is asked for."""
  return (
      f"<details><summary>{html.escape(summary)}</summary>"
      f"<pre>{html.escape(text)}</pre></details>\n"
  )
