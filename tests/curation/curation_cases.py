"""Small episodes for the tests of curation."""

import json
import pathlib

import numpy as np

from jaxrl_llm.curation import episodes

GOLDEN = json.loads(
    (pathlib.Path(__file__).parents[1] / "golden/data.json").read_text()
)["golden"]


def make(advantages, groups=None, lengths=None, **changes):
  """Episodes with these advantages; each of 3 trained tokens, 1 tool token."""
  count = len(advantages)
  masks = []
  for number in range(count):
    length = lengths[number] if lengths else 3
    mask = np.ones(length + 1, bool)
    mask[min(1, length)] = False
    masks.append(mask)
  return episodes.Episodes(
      record_ids=np.arange(count) + 2**62,
      group_ids=np.zeros(count, np.int64) if groups is None
      else np.asarray(groups),
      masks=masks,
      advantages=[np.float32(a) for a in advantages],
      **changes,
  )


def of_episodes(weights):
  """The one weight of each episode; all its tokens must have it."""
  found = [np.unique(row) for row in weights]
  assert all(row.size == 1 for row in found)
  return np.array([row[0] for row in found])
