"""The file of what was prepared for a rollout batch, keyed by record id.

Process 0 writes it; every host holds it whole.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import zipfile

import numpy as np

from jaxrl_llm.data import atomic

# Terms that may have one entry per record; the others have one per response
# token.
_SEQUENCE_TERMS = ("advantages", "scores")


@dataclasses.dataclass(frozen=True)
class Prepared:
  """Prepared terms of N records.

  Attributes:
    record_ids: int64 [N].
    lengths: int32 [N], response tokens.
    terms: by name of a field of Terms: [N], or the records' [R] or [R, K] one
      after another.
  """

  record_ids: np.ndarray
  lengths: np.ndarray
  terms: Mapping[str, np.ndarray]

  def of(self, record_ids: Sequence[int]) -> dict[str, list[np.ndarray]]:
    """Returns, by term, the entries of some records in their order."""
    places = {int(record): n for n, record in enumerate(self.record_ids)}
    chosen = [places[int(record)] for record in record_ids]
    ends = np.cumsum(self.lengths)
    result = {}
    for name, values in self.terms.items():
      if len(values) == len(self.record_ids) and name in _SEQUENCE_TERMS:
        result[name] = [values[n] for n in chosen]
      else:
        result[name] = [
            values[ends[n] - self.lengths[n] : ends[n]] for n in chosen
        ]
    return result


def save(path: pathlib.Path, prepared: Prepared, key: Mapping) -> None:
  """Writes the file; it is there whole or not at all.

  Args:
    path: ends in .npz.
    prepared: what to write.
    key: JSON object that `load` compares.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  beside = path.with_name(path.name + ".beside")
  with beside.open("wb") as file:
    np.savez(
        file,
        key=np.array(json.dumps(dict(key))),
        record_ids=prepared.record_ids,
        lengths=prepared.lengths,
        **{f"term_{name}": array for name, array in prepared.terms.items()},
    )
  atomic.publish(beside, path)


def load(path: pathlib.Path, key: Mapping | None = None) -> Prepared:
  """Reads a file of `save`; with a key, only one made for the same.

  Raises:
    ValueError: it was made for something else, or is damaged.
  """
  try:
    with np.load(path) as stored:
      arrays = {name: stored[name] for name in stored.files}
    found = json.loads(str(arrays.pop("key")))
    prepared = Prepared(
        arrays.pop("record_ids"),
        arrays.pop("lengths"),
        {name.removeprefix("term_"): x for name, x in arrays.items()},
    )
  except (zipfile.BadZipFile, EOFError, KeyError, ValueError) as error:
    raise ValueError(
        f"{path}: damaged ({error}), and the weights that it was made with may"
        " have moved on; restore it, or start in a new --workdir."
    ) from error
  if key is not None and found != key:
    odd = sorted(
        name
        for name in found.keys() | key.keys()
        if found.get(name) != key.get(name)
    )
    raise ValueError(
        f"{path}: prepared with another {', '.join(odd)}; resume with the"
        " same configuration, or start in a new --workdir."
    )
  return prepared
