"""What records say, known to all hosts, each of which reads a part of them."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import io

import jax
import numpy as np

from jaxrl_llm import hosts
from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import reading


@dataclasses.dataclass(frozen=True)
class Recorded:
  """What N records hold per response token, each an array [R] a record.

  Attributes:
    logprobs: float32, nats: of the policy that sampled, whole vocabulary.
    trained_masks: bool, see index.trained_mask.
    response_masks: bool, tokens of the policy, earlier rounds' too.
  """

  logprobs: Sequence[np.ndarray]
  trained_masks: Sequence[np.ndarray]
  response_masks: Sequence[np.ndarray]


def read(records: reading.Records, positions: Sequence[int]) -> Recorded:
  """Reads some records; all hosts call, and each holds what all have read."""
  return Recorded(**gather(records, positions, _of))


def _of(rollout: types.Rollout) -> dict[str, np.ndarray]:
  return {
      "logprobs": rollout.behavior_logprobs + rollout.log_kept_mass,
      "trained_masks": indices.trained_mask(rollout),
      "response_masks": rollout.response_mask,
  }


def gather(
    records: reading.Records,
    positions: Sequence[int],
    describe: Callable[[types.Rollout], Mapping[str, np.ndarray]],
) -> dict[str, list[np.ndarray]]:
  """Describes some records; all hosts call, and each gets all that was said.

  Args:
    records: where the positions point to.
    positions: [N], N > 0.
    describe: record -> arrays [n] by name, the same names of each.

  Returns:
    By name, the N records' arrays.

  Raises:
    ValueError: a record is damaged; in every process.
  """
  share = hosts.share(len(positions))
  own = hosts.together(
      lambda: [describe(records[int(positions[n])]) for n in share]
  )
  parts = [_by_name(own)]
  if jax.process_count() > 1:
    parts = map(_unpack, hosts.exchange_bytes(_pack(parts[0])))
  whole: dict[str, list[np.ndarray]] = {}
  for part in parts:
    for name, values in part.items():
      whole.setdefault(name, []).extend(values)
  return whole


def _by_name(described):
  names = described[0] if described else ()
  return {name: [said[name] for said in described] for name in names}


def _pack(part: Mapping[str, Sequence[np.ndarray]]) -> bytes:
  """Writes the arrays of each name one after another, behind their sizes."""
  file = io.BytesIO()
  arrays = {}
  for name, values in part.items():
    arrays[f"sizes_{name}"] = np.array([len(value) for value in values])
    arrays[f"values_{name}"] = np.concatenate(values)
  np.savez(file, **arrays)
  return file.getvalue()


def _unpack(content: bytes) -> dict[str, list[np.ndarray]]:
  """Reads what `_pack` has written."""
  found = {}
  with np.load(io.BytesIO(content)) as arrays:
    for key in arrays.files:
      if key.startswith("values_"):
        name = key.removeprefix("values_")
        ends = np.cumsum(arrays[f"sizes_{name}"])
        found[name] = np.split(arrays[key], ends[:-1])
  return found
