"""Tables of README.md are made from the code.

`python tests/verbs/readme_test.py` from the root writes them anew.
"""

import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from jaxrl_llm.allocation import registry
from jaxrl_llm.curation import methods
from jaxrl_llm.verbs import describe
from jaxrl_llm.verbs import manual

README = ROOT / "README.md"
TABLES = {
    "verbs": manual.markdown_rows,
    "algorithms": describe.markdown_rows,
    "allocation": lambda: registry.table().splitlines(),
    "curation": lambda: methods.table().splitlines(),
}


def block(name: str) -> str:
  """Returns a table between its marks."""
  rows = "\n".join(TABLES[name]())
  return f"<!-- {name} -->\n{rows}\n<!-- /{name} -->"


@pytest.mark.parametrize("name", TABLES)
def test_table_is_that_of_the_code(name):
  assert block(name) in README.read_text(encoding="utf-8"), (
      "run python tests/verbs/readme_test.py"
  )


def test_paths_named_in_the_readme_exist():
  text = README.read_text(encoding="utf-8")
  folders = "jaxrl_llm|configs|experiments|tests|tpu_scripts"
  named = re.findall(rf"`((?:{folders})/[\w./]*)`", text)
  assert named
  assert [path for path in named if not (ROOT / path).exists()] == []


if __name__ == "__main__":
  content = README.read_text(encoding="utf-8")
  for table in TABLES:
    pattern = f"<!-- {table} -->.*<!-- /{table} -->"
    content = re.sub(
        pattern, lambda _: block(table), content, flags=re.DOTALL
    )
  README.write_text(content, encoding="utf-8")
