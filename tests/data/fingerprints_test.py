"""Names are stable, 63 bits wide, and tell parts apart."""

import hashlib

from jaxrl_llm.data import fingerprints


def test_the_definition():
  """SHA-256 of length-prefixed, typed parts; these numbers are in shards."""
  digest = hashlib.sha256(b"7:str:abc5:int:7").digest()
  expected = int.from_bytes(digest[:8], "big") >> 1
  assert fingerprints.of_parts("abc", 7) == expected < 2**63


def test_parts_are_told_apart():
  names = {
      fingerprints.of_parts("ab", "c"),
      fingerprints.of_parts("a", "bc"),
      fingerprints.of_parts("abc"),
      fingerprints.of_parts(1),
      fingerprints.of_parts("1"),
      fingerprints.of_parts("\ud800"),
  }
  assert len(names) == 6


def test_records_of_a_round_have_their_own_names():
  """Lineage, round, prompt and sample each make another record."""
  base = ("lineage", 0, 5, 1)
  others = [("other", 0, 5, 1), ("lineage", 1, 5, 1), ("lineage", 0, 6, 1)]
  others += [("lineage", 0, 5, 2)]
  assert len({fingerprints.of_record(*key) for key in [base, *others]}) == 5
  assert len({fingerprints.of_group(*key[:3]) for key in [base, *others]}) == 4


def test_files(tmp_path):
  (tmp_path / "file").write_bytes(b"abc")
  digest = hashlib.sha256(b"abc").hexdigest()
  assert fingerprints.of_file(tmp_path / "file") == digest
