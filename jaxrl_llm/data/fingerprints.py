"""Stable names for problems, groups, records and files."""

import hashlib
import os

import numpy as np


def of_parts(*parts: str | int) -> int:
  """Returns a 63-bit fingerprint of a tuple of strings and integers.

  The parts are length-prefixed, so ("ab", "c") and ("a", "bc") differ, and
  typed, so 1 and "1" differ.
  """
  digest = hashlib.sha256()
  for part in parts:
    encoded = f"{type(part).__name__}:{part}".encode("utf-8", "surrogatepass")
    digest.update(f"{len(encoded)}:".encode())
    digest.update(encoded)
  return int.from_bytes(digest.digest()[:8], "big") >> 1


def of_group(lineage: str, round_number: int, prompt_id: int) -> int:
  """Returns the group id: all samples of one prompt in one round."""
  return of_parts("group", lineage, round_number, prompt_id)


def of_record(
    lineage: str, round_number: int, prompt_id: int, sample_index: int
) -> int:
  """Returns the record id of sample j of a prompt in a round."""
  return of_parts("record", lineage, round_number, prompt_id, sample_index)


def of_tokens(tokens: np.ndarray) -> int:
  """Returns a 63-bit fingerprint of token ids."""
  return of_parts("tokens", np.asarray(tokens, np.int32).tobytes().hex())


def of_file(path: str | os.PathLike[str]) -> str:
  """Returns the SHA-256 of a file as hexadecimal digits."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
