"""Tables what a chip sends as the mesh grows, from the reports of compile.sh.

Command: python experiments/scale/growth.py, after compile.sh
Rows per chip stay the same (weak scaling), so computing takes as long on every
mesh. What a fully sharded step sends is weights and gradients, as much for one
token per chip as for many: so below `tokens` per chip and micro-batch the
links need longer than the products, at the published peaks of both. With
`tensor`, activations are sent too, and there is no such number.
"""

import pathlib
import re

_REPORTS = pathlib.Path(__file__).with_name("reports")
# Tokens per chip and micro-batch in reports without `tensor`: one row.
_TOKENS = 4096
_HEADS = {
    "all-gather, GB": "gather",
    "reduce-scatter, GB": "scatter",
    "all-reduce, GB": "reduce",
    "collective-permute, GB": "permute",
}


def read(path: pathlib.Path) -> dict[str, str]:
  """Reads the row `add` of the table of work, and the slice above it."""
  lines = path.read_text().splitlines()
  head = next(line for line in lines if line.startswith("per chip and call"))
  row = next(line for line in lines[lines.index(head) :] if line[:4] == "add ")
  columns = re.split(r"  +", head)
  found = dict(zip(columns, re.split(r"  +", row), strict=True))
  total = next(line for line in lines if line.startswith("add  "))
  topology, chips = re.match(r"(\S+): (\d+) chips", lines[0]).groups()
  axes = re.findall(r"(\w+)=(\d+)", lines[1])
  mesh = ",".join(f"{axis}={size}" for axis, size in axes if size != "1")
  gib = re.split(r"  +", total)[-2]
  return found | {
      "slice": topology, "chips": chips, "mesh": mesh, "GiB": gib
  }


def main() -> None:
  """Prints a table in Markdown."""
  reports = [read(path) for path in _REPORTS.glob("growth_*.txt")]
  reports.sort(key=lambda r: (r["slice"][:3], int(r["chips"]), r["mesh"]))
  columns = ("slice", "chips", "mesh", "GiB")
  names = [*columns, *_HEADS.values()]
  names += ["s products", "s links", "links / products", "tokens"]
  print("| " + " | ".join(names) + " |")
  print("|---" * len(names) + "|")
  for report in reports:
    compute, links = (float(report[f"s {x}"]) for x in ("compute", "links"))
    cells = [report[column] for column in (*columns, *_HEADS)]
    least = f"{_TOKENS * links / compute:,.0f}"
    if "tensor" in report["mesh"]:
      least = "–"
    share = f"{links / compute:.2f}"
    cells += [f"{compute:.3g}", f"{links:.3g}", share, least]
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
  main()
