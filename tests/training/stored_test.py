"""stored.py: what was prepared comes back, or is refused in a line."""

import numpy as np
import pytest

from jaxrl_llm.training import stored

KEY = {"seed": 0}


@pytest.fixture(name="path")
def _path(tmp_path):
  terms = {
      "advantages": np.array([1.0, -1.0]),
      "proximal_logprobs": np.arange(-5.0, 0.0),
  }
  prepared = stored.Prepared(np.array([7, 9]), np.array([2, 3]), terms)
  stored.save(tmp_path / "batch.npz", prepared, KEY)
  return tmp_path / "batch.npz"


def test_entries_come_back_by_record(path):
  found = stored.load(path, KEY).of([9, 7])
  assert found.keys() == {"advantages", "proximal_logprobs"}
  assert found["advantages"] == [-1.0, 1.0]
  later, earlier = found["proximal_logprobs"]
  np.testing.assert_array_equal(later, [-3, -2, -1])
  np.testing.assert_array_equal(earlier, [-5, -4])


def test_another_key_is_named(path):
  with pytest.raises(ValueError, match="another seed"):
    stored.load(path, {"seed": 1})


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "other"])
def test_damage_is_one_line(path, damage):
  content = path.read_bytes()
  place = content.index(b"term_proximal_logprobs.npy") + 200
  path.write_bytes({
      "empty": b"",
      "cut": content[: len(content) // 2],
      # Of a number; the archive has its checksum.
      "bit": content[:place] + b"\xff" + content[place + 1 :],
      "other": b"no archive",
  }[damage])
  with pytest.raises(ValueError, match="batch.npz: damaged") as error:
    stored.load(path, KEY)
  assert "\n" not in str(error.value)
