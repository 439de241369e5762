"""Tables of a replay."""

from jaxrl_llm.lab import tables


def test_a_table_has_its_first_column_to_the_left():
  assert tables.table(["a", "number"], [["long one", "1"], ["b", "–"]]) == [
      "a         number",
      "long one       1",
      "b              –",
  ]


def test_numbers():
  assert tables.number(0.12345, 100.0, 1) == "12.3"
  assert tables.number(None, 1.0, 1) == tables.number(float("inf"), 1.0, 1)
  assert tables.number(float("nan"), 1.0, 1) == "–"


def make_replay(**extra):
  """Two objectives, not in the order of their names."""
  row = {"loss": -0.5, "grad_norm": 2.0, "clip": 0.25, "clip/low_negative": 0.1}
  after = row | {"updates": 3, "moved": 0.125} | extra
  return {
      "updates": 3,
      "objectives": ["ppo", "dapo"],
      "rows": dict.fromkeys(("dapo", "ppo"), {"start": row, "after": after}),
      "cosines": dict.fromkeys(
          ("start", "after", "moved"), [[1.0, 0.5], [0.5, None]]
      ),
      "not_replayed": {"vapo": "no critic"},
  }


def test_the_whole_report():
  lines = tables.of_replay(make_replay()).splitlines()
  assert lines[0] == "before the first update"
  assert lines[1].split()[:6] == "objective loss grad norm cut %".split()
  # r<1 A<0 is 10 % of the tokens; the other sides are not there.
  dash = "–"
  assert lines[2].split() == [
      "ppo", "-0.50000", "2.00000", "25.0", *[dash] * 3, "10.0", *[dash] * 5
  ]
  assert lines[3].startswith("dapo")
  start = lines.index("gradients, before the first update")
  assert lines[start + 1 : start + 4] == [
      "cosine      1      2",
      "1 ppo   1.000  0.500",
      "2 dapo  0.500      –",
  ]
  after = lines.index("after 3 mini-batches, on the next one")
  assert lines[after + 2].split()[-2:] == ["3", "0.12500"]
  assert lines[-1] == "not replayed: vapo: no critic"
  assert "exact J" not in "\n".join(lines)


def test_the_exact_gradient_has_columns_where_it_is_there():
  extra = {"exact/reward": 0.5, "exact/cosine": 0.75}
  lines = tables.of_replay(make_replay(**extra)).splitlines()
  after = lines.index("after 3 mini-batches, on the next one")
  assert lines[after + 1].split()[-4:] == ["exact", "J", "cos", "exact"]
  assert lines[after + 2].split()[-2:] == ["0.50000", "0.7500"]
