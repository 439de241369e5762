"""The page as a whole, in a real browser where there is one."""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess

import made_run
import pytest

from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.lab import page
from jaxrl_llm.lab import report
from jaxrl_llm.lab import rollouts
from jaxrl_llm.lab import samples
from jaxrl_llm.lab import sections

HEADINGS = [section.title for section in sections.ALL] + ["Samples"]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
LIMIT = 120  # Seconds; a browser needs three.
# What Chromium asks for by itself.
OWN = re.compile(r"https?://[^/]*\b(google|googleapis|gstatic|gvt1)\.com/")


def texts_of(folder: pathlib.Path) -> report.Texts:
  try:
    chosen = samples.choose(folder, rollouts.folders(folder), 3)
  except ValueError as error:
    return report.Texts((), "", None, "", (str(error),))
  tokenizer = tokenizer_lib.load("bytes")
  return report.Texts(
      samples.recorded(chosen), "proximal / behavior", tokenizer, "Lead", ()
  )


def written(*folders: pathlib.Path, into: pathlib.Path) -> pathlib.Path:
  """Writes the report of some runs; returns its path."""
  runs = [made_run.read(folder) for folder in folders]
  return report.write(runs, list(map(texts_of, folders)), into)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("report") / made_run.SCRIPT.replace("/", "_")
  made_run.whole(folder)
  return folder, written(folder, into=folder)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
  folder = tmp_path_factory.mktemp("nothing")
  return folder, written(folder, into=folder)


class Reader(html.parser.HTMLParser):
  """Collects headings, what is said to be missing, and what is loaded."""

  def __init__(self, text: str):
    super().__init__()
    self.headings, self.absent, self.loaded, self.tags = [], [], [], set()
    self._into = None
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    self._into = None
    if tag == "h2":
      self._into = self.headings
    if ("class", "missing") in attrs:
      self._into = self.absent
    if self._into is not None:
      self._into.append("")
    self.loaded += [v for k, v in attrs if k in ("src", "href", "srcset")]

  def handle_endtag(self, tag):
    self._into = None

  def handle_data(self, data):
    if self._into is not None:
      self._into[-1] += data


def test_page_holds_everything_itself(whole):
  reader = Reader(whole[1].read_text())
  assert reader.headings == HEADINGS
  assert not reader.absent
  assert all(link.startswith(("data:", "#")) for link in reader.loaded)
  assert not reader.tags & {"script", "iframe", "object", "embed"}
  assert "default-src 'none'" in whole[1].read_text()
  assert "url(" not in page._STYLE and "@import" not in page._STYLE


def test_every_picture_is_a_file_too(whole):
  folder, path = whole
  charts = [chart for section in sections.ALL for chart in section.charts]
  images = {path.stem for path in (folder / "report").glob("*.png")}
  assert images == {chart.name for chart in charts}
  assert path.read_text().count('src="data:image/png') == len(charts)
  assert not list(folder.rglob("*.beside"))


def test_report_of_nothing_says_so_in_each_section(empty):
  text = empty[1].read_text()
  for part in re.split("<section>", text)[1:]:
    # One reason for all charts of a section is said once.
    assert part.count('class="missing"') <= 2
    assert 'class="missing"' in part
  assert not list((empty[0] / "report").glob("*.png"))


def test_picture_of_what_is_gone_goes(tmp_path):
  folder = made_run.whole(tmp_path / "run")
  written(folder, into=folder)
  assert (folder / "report/groups.png").is_file()
  shutil.rmtree(folder / "feedback")
  written(folder, into=folder)
  assert not (folder / "report/groups.png").exists()


def test_same_files_give_the_same_page(tmp_path):
  folder = made_run.whole(tmp_path / "run")
  first = written(folder, into=folder).read_bytes()
  assert written(folder, into=folder).read_bytes() == first


def test_runs_side_by_side_are_told_apart(whole, empty, tmp_path):
  path = written(whole[0], empty[0], into=tmp_path)
  reader = Reader(path.read_text())
  assert reader.headings == HEADINGS
  assert all(line.startswith(f"{empty[0].name}: ") for line in reader.absent)
  assert (tmp_path / "report/reward.png").is_file()


def browse(path: pathlib.Path, scratch: pathlib.Path) -> tuple[str, str, set]:
  """Opens a page; returns its DOM, the console, and the hosts asked for."""
  log = scratch / "net.json"
  done = subprocess.run(
      [
          BROWSER, "--headless", "--no-sandbox", "--disable-gpu",
          "--disable-background-networking", "--disable-component-update",
          "--no-first-run", "--enable-logging=stderr",
          f"--user-data-dir={scratch / 'profile'}", f"--log-net-log={log}",
          "--dump-dom", path.as_uri(),
      ],
      capture_output=True, text=True, timeout=LIMIT, check=True,
      env=os.environ | {"HOME": str(scratch)},
  )
  console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
  urls = set(re.findall(r'"url":"(https?://[^"]+)"', log.read_text()))
  urls = {url for url in urls if not OWN.match(url)}
  return done.stdout, "\n".join(console), urls


@pytest.mark.skipif(
    not BROWSER, reason="neither chromium nor google-chrome is on the PATH"
)
class TestBrowser:

  @pytest.mark.parametrize("name", ["whole", "empty"])
  def test_page_opens_without_network_and_complaint(
      self, name, request, tmp_path
  ):
    _, path = request.getfixturevalue(name)
    dom, console, urls = browse(path, tmp_path)
    assert console == ""
    assert not urls
    assert Reader(dom).headings == HEADINGS
    assert "<title>Report: " in dom and "<title>struck" not in dom

  def test_a_page_that_asks_for_more_is_seen_and_stopped(
      self, empty, tmp_path
  ):
    """What the test above relies on; the page's policy stops the request."""
    text = empty[1].read_text()
    bad = tmp_path / "bad.html"
    image = '<img src="http://example.org/a.png">'
    bad.write_text(text.replace("</main>", f"{image}{made_run.SCRIPT}</main>"))
    dom, console, urls = browse(bad, tmp_path)
    assert "Content Security Policy" in console and "<title>struck" not in dom
    assert not urls
    bare = text.replace("default-src 'none'", "default-src *")
    bare = bare.replace("img-src data:", "img-src *")
    bad.write_text(bare.replace("</main>", f"{image}</main>"))
    _, console, urls = browse(bad, tmp_path / "second")
    assert urls == {"http://example.org/a.png"} and console
